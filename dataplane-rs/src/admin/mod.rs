//! The admin port: `/livez`, `/readyz[?verbose]`, `/status`, `/metrics` (docs/metrics.md). For probes and scrapers, not for callers:
//! no keys, and nothing on it that needs one. May reject: other paths (404), other methods (405), slow or idle peers.
//! IO: the listener it is given; never a database.
use crate::observe::{Observer, prometheus, timestamp};
use crate::runs::spool::EpochStatus;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Connections at a time; more wait in the listener's backlog.
const CONNECTIONS: usize = 64;
/// Until a request's head is there.
const HEAD: Duration = Duration::from_secs(10);
/// Longest life of a connection, so that idle ones can't use up the port.
const LIFE: Duration = Duration::from_secs(120);

/// Serves until dropped. Run it on the control thread.
pub async fn serve(listener: TcpListener, observer: Arc<Observer>) {
    let free = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(permit) = free.clone().acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(_) => {
                // Out of descriptors, or a peer that left: not worth more than another try.
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let observer = observer.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let answer = answer(&request, &observer, SystemTime::now());
                async move { Ok::<_, Infallible>(answer) }
            });
            let mut server = http1::Builder::new();
            server.timer(TokioTimer::new()).header_read_timeout(HEAD).max_buf_size(16 * 1024);
            let _ = timeout(LIFE, server.serve_connection(TokioIo::new(stream), service)).await;
            drop(permit);
        });
    }
}

fn text(status: StatusCode, kind: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(kind));
    response.headers_mut().insert(CACHE_CONTROL, hyper::header::HeaderValue::from_static("no-store"));
    response
}

fn answer(request: &Request<Incoming>, observer: &Observer, now: SystemTime) -> Response<Full<Bytes>> {
    const PLAIN: &str = "text/plain; charset=utf-8";
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut response = text(StatusCode::METHOD_NOT_ALLOWED, PLAIN, "method not allowed\n".into());
        response.headers_mut().insert(ALLOW, hyper::header::HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    match request.uri().path() {
        "/livez" => text(StatusCode::OK, PLAIN, "ok\n".into()),
        "/readyz" => {
            let verbose = request.uri().query().is_some_and(|q| q.split('&').any(|a| a == "verbose" || a.starts_with("verbose=")));
            let (ready, body) = readiness(observer, verbose);
            text(if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, PLAIN, body)
        }
        "/status" => text(StatusCode::OK, "application/json", status(observer, now).to_string()),
        "/metrics" => text(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", prometheus::render(observer, now)),
        _ => text(StatusCode::NOT_FOUND, PLAIN, "not found\n".into()),
    }
}

fn readiness(observer: &Observer, verbose: bool) -> (bool, String) {
    let checks = observer.readiness();
    let ready = checks.iter().all(|(_, outcome)| outcome.is_ok());
    let mut body = String::new();
    if verbose {
        for (name, outcome) in &checks {
            match outcome {
                Ok(()) => body.push_str(&format!("[+] {name}: ok\n")),
                Err(why) => body.push_str(&format!("[-] {name}: {why}\n")),
            }
        }
        // Shown, but no reason to be unready: the data plane serves on without them.
        for (name, down) in observer.databases() {
            match down {
                None => body.push_str(&format!("[+] database {name} (not gating): ok\n")),
                Some(why) => body.push_str(&format!("[-] database {name} (not gating): {why}\n")),
            }
        }
        body.push_str(if observer.is_gateway_up() { "[+] gateway (not gating): ok\n" } else { "[-] gateway (not gating): down\n" });
        let failing = observer.ship.failing.load(Relaxed);
        body.push_str(if failing { "[-] run store (not gating): failing\n" } else { "[+] run store (not gating): ok\n" });
    }
    body.push_str(if ready { "ready\n" } else { "not ready\n" });
    (ready, body)
}

/// What `/status` says.
pub fn status(observer: &Observer, now: SystemTime) -> serde_json::Value {
    let snapshot = observer.snapshot();
    let spool = observer.spool().unwrap_or_default();
    let ship = &observer.ship;
    let applied = snapshot.as_ref().map(|s| {
        serde_json::json!({
            "version": s.version, "applied": timestamp(s.applied),
            "ageSeconds": now.duration_since(s.applied).unwrap_or_default().as_secs(),
            "queries": s.queries, "refused": s.refused, "keys": s.keys, "sources": &*s.sources,
        })
    });
    let epoch = |e: &EpochStatus| serde_json::json!({"epoch": format!("{:016x}", e.epoch), "recorded": e.recorded, "stored": e.stored});
    let epochs: Vec<_> = spool.epochs.iter().map(epoch).collect();
    serde_json::json!({
        "version": env!("CARGO_PKG_VERSION"),
        "started": timestamp(observer.started()),
        "ready": observer.readiness().iter().all(|(_, outcome)| outcome.is_ok()),
        "draining": observer.is_draining(),
        "gatewayUp": observer.is_gateway_up(),
        "gateway": snapshot.as_ref().and_then(|s| s.gateway.as_deref()),
        "snapshot": applied,
        "spool": {
            "bytes": spool.bytes, "boundBytes": spool.bound_bytes, "segments": spool.segments,
            "unsyncedBytes": spool.unsynced_bytes, "dropped": spool.dropped, "failing": spool.failing,
        },
        "runs": {
            "shipped": ship.shipped.load(Relaxed), "waiting": ship.waiting.load(Relaxed),
            "aborted": ship.aborted.load(Relaxed), "failing": ship.failing.load(Relaxed), "epochs": epochs,
        },
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    async fn ask(address: std::net::SocketAddr, method: &str, path: &str) -> String {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        stream.write_all(format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test(flavor = "current_thread")]
    async fn each_page() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let observer = Observer::silent();
        tokio::spawn(serve(listener, observer.clone()));
        assert!(ask(address, "GET", "/livez").await.starts_with("HTTP/1.1 200 OK"));
        let unready = ask(address, "GET", "/readyz?verbose").await;
        assert!(unready.starts_with("HTTP/1.1 503"), "{unready}");
        assert!(unready.contains("[-] snapshot: none yet\n") && unready.contains("[-] spool: not open\n"), "{unready}");
        assert!(!ask(address, "GET", "/readyz").await.contains("[-]"));
        observer.watch_spool(Box::new(Default::default));
        let text = r#"{"schema":1,"version":7,"api":{"namespace":"n","name":"a","bigNumbers":"number","hideForbidden":false,
            "trustedProxies":[],"spoolSizeBytes":1048576,"onFull":"reject","durability":"process","runStore":{"embedded":{}}},
            "sources":[{"kind":"ApiKeys","namespace":"n","name":"","uid":"","generation":0,"resourceVersion":"12"}],
            "connections":[],"queries":[],"roles":[],"keys":[]}"#;
        observer.snapshot_applied(&serde_json::from_str(text).unwrap());
        assert!(ask(address, "GET", "/readyz").await.starts_with("HTTP/1.1 200 OK"));
        let status = ask(address, "GET", "/status").await;
        let status: serde_json::Value = serde_json::from_str(status.split("\r\n\r\n").nth(1).unwrap()).unwrap();
        assert_eq!(status["snapshot"]["version"], 7);
        assert_eq!(status["snapshot"]["sources"][0]["kind"], "ApiKeys");
        assert_eq!(status["snapshot"]["sources"][0]["resourceVersion"], "12");
        assert_eq!(status["gateway"], serde_json::Value::Null);
        let report = |version: u64| {
            let gateway = serde_json::json!({"queries": {"total": 2, "served": 1, "coalesced": 1, "stopped": [], "refused": []}, "keys": 1, "refusedKeys": [], "stale": false});
            let source = serde_json::json!({"kind": status["snapshot"]["sources"][0]["kind"], "namespace": "n", "name": "", "uid": "", "generation": 0, "resourceVersion": "13"});
            serde_json::from_value(serde_json::json!({"version": version, "sources": [source], "gateway": gateway})).unwrap()
        };
        assert!(!observer.reported(report(8)));
        assert!(observer.reported(report(7)));
        let status = ask(address, "GET", "/status").await;
        let status: serde_json::Value = serde_json::from_str(status.split("\r\n\r\n").nth(1).unwrap()).unwrap();
        assert_eq!(status["gateway"]["queries"]["served"], 1);
        assert_eq!(status["snapshot"]["sources"][0]["resourceVersion"], "13");
        assert_eq!(status["gatewayUp"], false);
        observer.snapshot_applied(&serde_json::from_str(text).unwrap());
        assert_eq!(super::status(&observer, SystemTime::now())["gateway"], serde_json::Value::Null);
        assert!(ask(address, "GET", "/metrics").await.contains("\ntailrace_snapshot_version 7\n"));
        assert!(ask(address, "POST", "/metrics").await.starts_with("HTTP/1.1 405"));
        assert!(ask(address, "GET", "/plans").await.starts_with("HTTP/1.1 404"));
    }
}
