//! The page in a real browser: Debian's chromium, without a window.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use lab::in_fresh_network;
use tempfile::TempDir;

use super::{Daemon, METRICS};

/// The picture in the documentation. `STATUS_PICTURE=1 cargo test -p proxier --test top browser` makes it anew.
const PICTURE: &str = "docs/status.png";

/// A Service with endpoints in each state, on the loopback addresses of the relay's machine, and one without endpoints.
const SHOP: &str = "
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: web}
spec:
  clusterIP: 10.96.0.10
  ports: [{name: http, port: 80, targetPort: 8080}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  namespace: shop
  name: web-x7k2p
  labels: {kubernetes.io/service-name: web}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints:
- {addresses: [127.80.0.1], nodeName: node-a, zone: eu-1a}
- {addresses: [127.80.0.2], nodeName: node-b, zone: eu-1b}
- {addresses: [127.80.0.3], nodeName: node-b, zone: eu-1b, conditions: {ready: false}}
- {addresses: [127.80.0.4], nodeName: node-c, zone: eu-1c, conditions: {ready: false, serving: true, terminating: true}}
- {addresses: [127.80.0.5], nodeName: node-a, zone: eu-1a}
---
apiVersion: v1
kind: Service
metadata: {namespace: billing, name: api}
spec:
  clusterIP: 10.96.0.30
  ports: [{port: 443}]
";

/// Listens at an endpoint, and keeps the connections.
fn serve(address: &str) {
    let listener = TcpListener::bind(address).unwrap();
    std::thread::spawn(move || listener.incoming().collect::<Vec<_>>());
}

/// Returns chromium with these arguments. It keeps nothing, and needs no sandbox of its own for our own page.
fn chromium(profile: &TempDir, arguments: &[&str]) -> Command {
    let mut command = Command::new("chromium");
    command.args([
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-proxy-server",
        "--hide-scrollbars",
    ]);
    command.arg(format!("--user-data-dir={}", profile.path().display()));
    command.args(arguments).stderr(Stdio::null());
    command
}

/// Forwards requests to the metrics server, and sends the first line of each to the receiver.
fn watch() -> (SocketAddr, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (seen, requests) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let seen = seen.clone();
            std::thread::spawn(move || forward(stream, &seen));
        }
    });
    (address, requests)
}

/// Forwards one request; the connection ends with its answer.
fn forward(client: TcpStream, seen: &std::sync::mpsc::Sender<String>) {
    let mut lines = BufReader::new(client.try_clone().unwrap()).lines();
    // A browser opens connections that it does not use.
    let Some(Ok(line)) = lines.next() else {
        return;
    };
    let path = line.split(' ').nth(1).unwrap_or_default();
    let _ = seen.send(path.to_owned());
    let mut server = TcpStream::connect(METRICS).unwrap();
    write!(
        server,
        "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = Vec::new();
    server.read_to_end(&mut answer).unwrap();
    let _ = (&client).write_all(&answer);
}

/// A browser that shows a page until it is dropped.
struct Browser(Child);

impl Drop for Browser {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn a_browser_shows_the_page_and_refreshes_it() {
    if Command::new("chromium").arg("--version").output().is_err() {
        assert!(
            std::env::var_os("LAB_REQUIRED").is_none(),
            "the Debian package chromium is missing"
        );
        return eprintln!("skipped: the Debian package chromium is missing");
    }
    in_fresh_network(|| {
        // The relay needs no kernel of the lab, and chromium none either.
        let flags = [
            "--dataplane=userspace",
            "--metrics-bind-address=127.0.0.1:10249",
            "--status-page",
        ];
        for address in ["127.80.0.1:8080", "127.80.0.2:8080", "127.80.0.5:8080"] {
            serve(address);
        }
        let daemon = Daemon::with(SHOP, &flags);
        let connect = |_| TcpStream::connect("10.96.0.10:80").unwrap();
        let connections: Vec<TcpStream> = (0..12).map(connect).collect();
        // One leaves, and has connections.
        daemon.edit(
            "- {addresses: [127.80.0.5], nodeName: node-a, zone: eu-1a}\n",
            "",
        );
        daemon.await_view("connections and a drain", &["shop/web"], |view| {
            let rows = view["services"]["rows"].as_array().unwrap();
            rows.iter()
                .any(|row| row["active"] == 12 && row["draining"] == 1)
        });
        let profile = tempfile::tempdir().unwrap();
        let (address, requests) = watch();
        let page = format!("http://{address}/status?service=shop/web");

        let dom = chromium(&profile, &["--dump-dom", &format!("{page}&refresh=0")])
            .output()
            .unwrap();
        let dom = String::from_utf8(dom.stdout).unwrap();
        for part in [
            "<td>127.80.0.1:8080</td>",
            "<td class=\"warn\">not ready</td>",
            "<td class=\"warn\">terminating, and others are ready</td>",
            "<td class=\"warn\">removed; draining, at most ",
            "<td class=\"bad\">no endpoint</td>",
            "Service shop/web</h2>",
        ] {
            assert!(dom.contains(part), "{part}: {dom}");
        }
        let file = profile.path().join("status.png");
        let screenshot = format!("--screenshot={}", file.display());
        let taken = chromium(
            &profile,
            &[
                &screenshot,
                "--window-size=1280,900",
                &format!("{page}&refresh=0"),
            ],
        );
        assert!({ taken }.status().unwrap().success());
        let picture = std::fs::read(&file).unwrap();
        // Eight bytes that each PNG has, its length and `IHDR`, then its size.
        let size = |at: usize| u32::from_be_bytes(picture[at..at + 4].try_into().unwrap());
        assert_eq!(
            (&picture[1..4], size(16), size(20)),
            (&b"PNG"[..], 1_280, 900)
        );
        // An empty page has some 5 kB.
        assert!(picture.len() > 20_000, "{}", picture.len());
        let documented = Path::new(env!("CARGO_MANIFEST_DIR")).join(PICTURE);
        if std::env::var_os("STATUS_PICTURE").is_some() {
            std::fs::copy(&file, &documented).unwrap();
        }
        assert!(documented.is_file(), "{PICTURE} is missing");

        drop(connections);
        // Nothing else is loaded, and the page asks for itself again.
        while let Ok(path) = requests.try_recv() {
            assert!(
                path.starts_with("/status?") || path == "/favicon.ico",
                "{path}"
            );
        }
        let live = ["--remote-debugging-port=0", &*format!("{page}&refresh=1")];
        let _browser = Browser(chromium(&profile, &live).spawn().unwrap());
        for _ in 0..3 {
            let asks = || requests.recv_timeout(Duration::from_secs(60)).unwrap();
            while !asks().starts_with("/status?") {}
        }
    })
    .unwrap();
}
