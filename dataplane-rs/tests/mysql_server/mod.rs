//! A private MariaDB for tests: own data folder, port and socket, ended when dropped. Programs from Debian's `mariadb-server`.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]
use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

pub struct Server {
    pub port: u16,
    home: tempfile::TempDir,
    child: Option<Child>,
    settings: Vec<String>,
}

const SIZES: [&str; 4] = ["innodb_buffer_pool_size=16M", "innodb_log_file_size=8M", "aria_pagecache_buffer_size=8M", "key_buffer_size=1M"];

fn is_root() -> bool {
    fs::metadata("/proc/self").unwrap().uid() == 0
}

fn give(path: &Path) {
    if is_root() {
        assert!(Command::new("chown").arg("-R").arg("mysql:mysql").arg(path).status().unwrap().success());
    }
}

fn user() -> Option<&'static str> {
    is_root().then_some("--user=mysql")
}

/// A data folder as mariadb-install-db makes it, made once and kept with the build. One at a time: several installations at once fail each other.
fn template() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(installed)
}

fn installed() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let kept = folder.join("mariadb");
    if !kept.exists() {
        let home = tempfile::Builder::new().prefix("tailrace-my-").tempdir_in("/var/tmp").unwrap();
        give(home.path());
        let data = home.path().join("data");
        let mut install = Command::new("/usr/bin/mariadb-install-db");
        install.arg("--no-defaults").args(user()).arg(format!("--datadir={}", data.display()));
        install.args(["--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"]);
        let output = install.args(SIZES.map(|size| format!("--{size}"))).current_dir("/").output().expect("apt-get install mariadb-server");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        let own = tempfile::Builder::new().prefix("mariadb-").tempdir_in(folder).unwrap();
        copy(&data, &own.path().join("data"));
        // Another test may have been first.
        _ = fs::rename(own.path().join("data"), &kept);
    }
    kept
}

fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap().success());
}

impl Server {
    /// `root` without a password, from loopback and the socket.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    pub fn start_with(settings: &[&str]) -> Self {
        let home = tempfile::Builder::new().prefix("tailrace-my-").tempdir_in("/var/tmp").unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let settings = settings.iter().map(|setting| (*setting).to_owned()).collect();
        let mut server = Self { port, home, child: None, settings };
        copy(template(), &server.home.path().join("data"));
        give(server.home.path());
        server.run();
        server.sql("CREATE DATABASE shop");
        server
    }

    pub fn home(&self) -> &Path {
        self.home.path()
    }

    /// Makes a file that the server may read.
    pub fn file(&self, name: &str, content: &str) -> PathBuf {
        let path = self.home.path().join(name);
        fs::write(&path, content).unwrap();
        give(&path);
        path
    }

    /// Starts the stopped server and waits until it answers.
    pub fn run(&mut self) {
        let home = self.home.path().display();
        let log = fs::OpenOptions::new().create(true).append(true).open(self.home.path().join("log")).unwrap();
        let mut command = Command::new("/usr/sbin/mariadbd");
        command.arg("--no-defaults").args(user()).args(["--skip-log-bin", "--skip-name-resolve", "--performance-schema=off"]);
        command.args([format!("--datadir={home}/data"), format!("--socket={home}/sock"), format!("--port={}", self.port)]);
        command.args([format!("--pid-file={home}/pid"), format!("--tmpdir={home}"), "--bind-address=127.0.0.1".to_owned()]);
        // 2: what is committed survives a kill of the server.
        command.args(["--innodb-flush-log-at-trx-commit=2", "--innodb-doublewrite=0", "--character-set-server=utf8mb4"]);
        command.args(SIZES.map(|size| format!("--{size}"))).args(self.settings.iter().map(|setting| format!("--{setting}")));
        self.child = Some(command.current_dir("/").stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap());
        for _ in 0..600 {
            if self.try_sql("SELECT 1").status.success() {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("MariaDB did not start: {}", fs::read_to_string(self.home.path().join("log")).unwrap());
    }

    /// kill -9.
    pub fn crash(&mut self) {
        if let Some(mut child) = self.child.take() {
            _ = child.kill();
            _ = child.wait();
        }
    }

    pub fn sql(&self, sql: &str) -> String {
        let output = self.try_sql(sql);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }

    pub fn try_sql(&self, sql: &str) -> Output {
        let socket = format!("--socket={}/sock", self.home.path().display());
        let mut command = Command::new("/usr/bin/mariadb");
        command.args([
            "--no-defaults",
            &socket,
            "--user=root",
            "--batch",
            "--skip-column-names",
            "--raw",
            "--default-character-set=utf8mb4",
        ]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // It ends early while the server is not there.
        _ = child.stdin.take().unwrap().write_all(sql.as_bytes());
        child.wait_with_output().unwrap()
    }

    pub fn url(&self) -> String {
        format!("mysql://root@127.0.0.1:{}/shop?ssl-mode=disabled", self.port)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.crash();
    }
}
