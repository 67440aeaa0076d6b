//! A private PostgreSQL for tests: own data folder, own port, ended when dropped. Binaries from Debian's `postgresql`, or `PG_BIN`.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

pub struct Server {
    pub port: u16,
    home: tempfile::TempDir,
    bin: PathBuf,
    child: Option<Child>,
}

pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn binaries() -> PathBuf {
    if let Some(folder) = std::env::var_os("PG_BIN") {
        return folder.into();
    }
    let folders = ["15", "16", "17"].map(|version| PathBuf::from(format!("/usr/lib/postgresql/{version}/bin")));
    folders.into_iter().find(|folder| folder.join("initdb").exists()).expect("install PostgreSQL 15: apt-get install postgresql")
}

fn root() -> bool {
    std::os::unix::fs::MetadataExt::uid(&fs::metadata("/proc/self").unwrap()) == 0
}

/// The same program as the user `postgres` when we are root: the servers refuse root.
pub fn unprivileged(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = if root() {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=postgres", "--regid=postgres", "--init-groups"]).arg(program);
        command
    } else {
        Command::new(program)
    };
    command.current_dir("/").stdin(Stdio::null());
    command
}

pub fn give(path: &Path) {
    if root() {
        assert!(Command::new("chown").arg("-R").arg("postgres:postgres").arg(path).status().unwrap().success());
    }
}

fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap().success());
}

/// A data folder as initdb makes it, made once and kept with the build.
fn template(bin: &Path) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let kept = folder.join(format!("postgres{}", bin.display().to_string().replace('/', "-")));
    if !kept.exists() {
        let home = tempfile::Builder::new().prefix("tailrace-pg-").tempdir_in("/var/tmp").unwrap();
        give(home.path());
        let data = home.path().join("data");
        let mut initdb = unprivileged(bin.join("initdb"));
        initdb.arg("-D").arg(&data).args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "-N"]);
        let output = initdb.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let own = tempfile::Builder::new().prefix("postgres-").tempdir_in(folder).unwrap();
        copy(&data, &own.path().join("data"));
        // Another test may have been first.
        _ = fs::rename(own.path().join("data"), &kept);
    }
    kept
}

impl Server {
    /// Trust on loopback and the socket; superuser `postgres`.
    pub fn start() -> Self {
        Self::start_with("local all all trust\nhost all all 127.0.0.1/32 trust\nhost all all ::1/128 trust\n", &[])
    }

    /// `files`: name below the data folder, content (0600).
    pub fn start_with(hba: &str, files: &[(&str, &str)]) -> Self {
        let home = tempfile::Builder::new().prefix("tailrace-pg-").tempdir_in("/var/tmp").unwrap();
        give(home.path());
        let mut server = Self { port: free_port(), home, bin: binaries(), child: None };
        copy(&template(&server.bin), &server.data());
        give(&server.data());
        fs::write(server.data().join("pg_hba.conf"), hba).unwrap();
        for (name, content) in files {
            let path = server.data().join(name);
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
            give(&path);
        }
        server.run(&[]);
        server
    }

    /// A server in recovery that waits for a primary it will never reach: read-only, as a standby is.
    pub fn start_standby() -> Self {
        let mut server = Self::start();
        server.stop("fast");
        fs::write(server.data().join("standby.signal"), "").unwrap();
        give(&server.data().join("standby.signal"));
        server.run(&[]);
        server
    }

    pub fn data(&self) -> PathBuf {
        self.home.path().join("data")
    }

    pub fn home(&self) -> &Path {
        self.home.path()
    }

    /// Starts the stopped server and waits until it answers.
    pub fn run(&mut self, settings: &[&str]) {
        let log = fs::OpenOptions::new().create(true).append(true).open(self.home.path().join("log")).unwrap();
        let mut command = unprivileged(self.bin.join("postgres"));
        command.arg("-D").arg(self.data());
        let own = [
            "listen_addresses=127.0.0.1".to_owned(),
            format!("port={}", self.port),
            format!("unix_socket_directories={}", self.home.path().display()),
            "fsync=off".to_owned(),
            "max_connections=60".to_owned(),
        ];
        for setting in own.iter().map(String::as_str).chain(settings.iter().copied()) {
            command.arg("-c").arg(setting);
        }
        self.child = Some(command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap());
        for _ in 0..300 {
            let ready = Command::new(self.bin.join("pg_isready")).args(["-q", "-h", "127.0.0.1", "-p", &self.port.to_string()]).status();
            if ready.unwrap().success() {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("PostgreSQL did not start: {}", fs::read_to_string(self.home.path().join("log")).unwrap());
    }

    /// `fast` or `immediate`.
    pub fn stop(&mut self, mode: &str) {
        if let Some(mut child) = self.child.take() {
            _ = unprivileged(self.bin.join("pg_ctl")).arg("-D").arg(self.data()).args(["-m", mode, "-w", "stop"]).output();
            _ = child.wait();
        }
    }

    /// kill -9 of the server and of all its processes, as when its machine goes.
    pub fn crash(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        let pid = child.id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        // The parent first, so that it starts no others.
        let pids = std::iter::once(pid).chain(children.split_whitespace().filter_map(|pid| pid.parse().ok()));
        for pid in pids.filter_map(|pid| rustix::process::Pid::from_raw(pid as i32)) {
            _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        _ = child.wait();
        _ = fs::remove_file(self.data().join("postmaster.pid"));
    }

    /// CPU of the server and of all its processes, those that have ended included.
    pub fn cpu_seconds(&self) -> f64 {
        let pid = self.child.as_ref().unwrap().id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        let ticks = |pid: &str, fields: std::ops::Range<usize>| -> f64 {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let behind = stat.rsplit_once(')').map_or("", |(_, behind)| behind);
            behind.split_whitespace().skip(fields.start).take(fields.len()).filter_map(|n| n.parse::<f64>().ok()).sum()
        };
        // utime, stime; of the parent also those of ended children.
        let all = ticks(&pid.to_string(), 11..15) + children.split_whitespace().map(|pid| ticks(pid, 11..13)).sum::<f64>();
        all / 100.0
    }

    pub fn reload(&self) {
        self.psql("SELECT pg_reload_conf()");
    }

    pub fn hba(&self, text: &str) {
        fs::write(self.data().join("pg_hba.conf"), text).unwrap();
        self.reload();
    }

    pub fn psql(&self, sql: &str) -> String {
        let output = self.try_psql(sql);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }

    pub fn try_psql(&self, sql: &str) -> Output {
        let url = format!("host={} port={} user=postgres dbname=postgres", self.home.path().display(), self.port);
        Command::new(self.bin.join("psql")).args(["-qAtX", "-v", "ON_ERROR_STOP=1", "-c", sql, &url]).output().unwrap()
    }

    pub fn url(&self) -> String {
        format!("postgresql://postgres@127.0.0.1:{}/postgres?sslmode=disable", self.port)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop("immediate");
    }
}
