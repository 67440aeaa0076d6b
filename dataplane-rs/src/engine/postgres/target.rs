//! Where a ConnectionPlan leads now: its mounted files, read anew at each connect and watched for change.
//! IO: reads and stats small local files (blocking: tens of µs). May reject: an unreadable or malformed URL, a bad setting.
use super::session::{SettingError, Settings};
use super::tls;
use super::uri::{Files, Uri, UriError};
use crate::plan::snapshot::{ConnectionPlan, Pooler};
use std::os::unix::fs::MetadataExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// Why there is no target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// The mounted file cannot be read.
    #[error("the file with the URL cannot be read")]
    Unreadable,
    /// The URL is not acceptable.
    #[error("URL: {0}")]
    Uri(#[from] UriError),
    /// A setting of the plan is not acceptable.
    #[error(transparent)]
    Setting(#[from] SettingError),
}

/// Everything that one connect needs.
#[derive(Clone, Debug)]
pub struct Target {
    /// The parsed URL.
    pub uri: Uri,
    /// What its sessions are set to.
    pub settings: Settings,
    /// What stands between.
    pub pooler: Pooler,
    /// Raised whenever a mounted file changed: connections of an older generation drain once a newer one works.
    pub generation: u64,
}

type Print = Vec<Option<(u64, u64, u64, Option<SystemTime>)>>;

/// The next generation. No number is given twice in a process: a connection that leaves the API and comes back with an equal
/// plan is not taken for what it was, and of one source each change has a higher one.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// A ConnectionPlan's files. Shared by all threads.
#[derive(Debug)]
pub struct Source {
    url_file: String,
    files: Files,
    session: Vec<(String, String)>,
    statement_timeout: Duration,
    pooler: Pooler,
    seen: Mutex<(u64, Print)>,
}

impl Source {
    /// Reads nothing yet.
    pub fn new(plan: &ConnectionPlan) -> Self {
        Self {
            url_file: plan.url_file.clone(),
            files: tls::files(plan),
            session: plan.session.clone(),
            statement_timeout: Duration::from_millis(plan.statement_timeout_ms),
            pooler: plan.pooler,
            seen: Mutex::default(),
        }
    }

    /// What stands between us and the server.
    pub const fn pooler(&self) -> Pooler {
        self.pooler
    }

    fn print(&self) -> Print {
        let extra = [&self.files.ca, &self.files.certificate, &self.files.key];
        let paths = std::iter::once(&self.url_file).chain(extra.into_iter().flatten());
        // Follows links: the kubelet swaps a directory behind one.
        let print = |path| std::fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino(), meta.len(), meta.modified().ok()));
        paths.map(print).collect()
    }

    /// The generation of the files as they stand; a change since the last look raises it. Call about once a second.
    pub fn generation(&self) -> u64 {
        let print = self.print();
        let mut seen = self.seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if seen.1 != print {
            *seen = (NEXT.fetch_add(1, Ordering::Relaxed), print);
        }
        seen.0
    }

    /// The URL's text now, and of which generation it is.
    pub fn text(&self) -> Result<(u64, String), TargetError> {
        // First the generation: a file that is replaced in between counts as changed at the next look.
        let generation = self.generation();
        Ok((generation, std::fs::read_to_string(&self.url_file).map_err(|_| TargetError::Unreadable)?))
    }

    /// The PEM files of the plan.
    pub const fn files(&self) -> &Files {
        &self.files
    }

    /// The owner's settings of a session, and how long a statement may take.
    pub fn session(&self) -> (&[(String, String)], Duration) {
        (&self.session, self.statement_timeout)
    }

    /// Reads the URL now, as one of PostgreSQL.
    pub fn read(&self) -> Result<Target, TargetError> {
        let (generation, text) = self.text()?;
        let uri = Uri::parse(&text, &self.files)?;
        let settings = Settings::new(&self.session, self.statement_timeout)?;
        Ok(Target { uri, settings, pooler: self.pooler, generation })
    }
}
