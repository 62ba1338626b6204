//! `ipvs-proxier top` and the page `/status`, beside a running proxy on a real kernel with traffic.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::Duration;

use lab::net::{Cluster, Connection};
use serde_json::Value;
use tempfile::TempDir;

#[path = "top/browser.rs"]
mod browser;
#[path = "top/cost.rs"]
mod cost;
#[path = "top/plugin.rs"]
mod plugin;

/// The frontend of the Service `web` of `traffic/web.yaml`.
const WEB: &str = "10.96.1.1:80";

const METRICS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 10249);

/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(500);

/// A proxy on node-a with manifests. Dropping it kills the process.
struct Daemon {
    directory: TempDir,
    child: Child,
}

impl Daemon {
    /// Starts it with the Services of `traffic/web.yaml`.
    fn start(flags: &[&str]) -> Self {
        Self::with(include_str!("traffic/web.yaml"), flags)
    }

    /// Starts it, and waits for its first round.
    fn with(manifests: &str, flags: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("manifests")).unwrap();
        write(&directory, manifests);
        let log = std::fs::File::create(directory.path().join("log")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_ipvs-proxier"));
        command.args(["run", "--node-name=node-a", "--cluster-cidr=10.244.0.0/16"]);
        command.args(["--ipvs-min-sync-period=0s", "--manifests"]);
        command.arg(directory.path().join("manifests"));
        command.arg("--state-file").arg(state(&directory));
        let child = command.args(flags).stderr(log).spawn().unwrap();
        let daemon = Self { directory, child };
        daemon.await_view("a first round", &[], |view| {
            view["head"]["isHealthy"] == true
        });
        daemon
    }

    /// Returns the output of `top --once` and whether it succeeded.
    fn top(&self, arguments: &[&str]) -> (bool, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ipvs-proxier"));
        command
            .args(["top", "--once", "--state-file"])
            .arg(state(&self.directory));
        let output = command.args(arguments).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let failure = String::from_utf8(output.stderr).unwrap();
        (output.status.success(), text + &failure)
    }

    /// Waits for a view that `is_wanted`, and returns it.
    #[track_caller]
    fn await_view(
        &self,
        what: &str,
        arguments: &[&str],
        is_wanted: impl Fn(&Value) -> bool,
    ) -> Value {
        let mut last = String::new();
        let view = lab::await_some(PAUSE, || {
            let arguments = [arguments, &["--output=json"]].concat();
            last = self.top(&arguments).1;
            let view = serde_json::from_str::<Value>(&last).ok()?;
            is_wanted(&view).then_some(view)
        });
        let log = || std::fs::read_to_string(self.directory.path().join("log")).unwrap();
        view.unwrap_or_else(|| panic!("no view with {what}:\n{last}\n{}", log()))
    }

    /// Returns the processor time that the process has used.
    fn processor_time(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        // After the name, which may have blanks: the state is the first field, utime and stime the 12th and 13th.
        let fields = stat.rsplit(')').next().unwrap();
        let ticks = fields.split_whitespace().skip(11).take(2);
        let ticks: u64 = ticks.map(|it| it.parse::<u64>().unwrap()).sum();
        Duration::from_millis(ticks * 10)
    }

    /// Replaces a part of the manifests.
    fn edit(&self, old: &str, new: &str) {
        let path = self.directory.path().join("manifests/services.yaml");
        let text = std::fs::read_to_string(path).unwrap();
        assert!(text.contains(old), "{text}");
        write(&self.directory, &text.replace(old, new));
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn state(directory: &TempDir) -> PathBuf {
    directory.path().join("state.jsonl")
}

/// Replaces the manifests at once, so that no half of them is read.
fn write(directory: &TempDir, text: &str) {
    let new = directory.path().join("new.yaml");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(new, directory.path().join("manifests/services.yaml")).unwrap();
}

/// Returns the head and the body of the answer of the metrics server.
fn request(method: &str, target: &str) -> (String, String) {
    let mut stream = TcpStream::connect(METRICS).unwrap();
    write!(
        stream,
        "{method} {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

/// Returns the row of the port `http` of `web`.
fn row(view: &Value) -> &Value {
    let rows = view["services"]["rows"].as_array().unwrap();
    rows.iter().find(|row| row["port"] == "http").unwrap()
}

/// Returns the endpoint of the first frontend of `web` with this address.
fn endpoint<'a>(view: &'a Value, address: &str) -> Option<&'a Value> {
    let frontends = view["service"]["frontends"].as_array()?;
    let frontend = frontends
        .iter()
        .find(|it| it["frontend"] == format!("TCP {WEB}"))?;
    let mut endpoints = frontend["endpoints"].as_array()?.iter();
    endpoints.find(|it| it["address"] == address)
}

/// What the counters of a dataplane tell.
struct Told {
    dataplane: &'static str,
    /// Whether it counts connections that have ended, and bytes.
    counts_ended: bool,
    counts_bytes: bool,
}

/// Connects as clients do, removes an endpoint that has a connection, makes another one unready, and looks.
fn look_at(told: &Told) {
    let cluster = Cluster::conformance();
    let daemon = Daemon::start(&[&format!("--dataplane={}", told.dataplane)]);
    for _ in 0..20 {
        let answer = cluster.pod3.ask_tcp(WEB);
        assert!(answer.backend().is_some(), "{answer:?}");
    }
    let mut held: Connection = cluster.pod3.connect(WEB).unwrap();
    let service = ["default/web"];
    let view = daemon.await_view("traffic", &service, |view| {
        let row = row(view);
        let is_open = row["active"].as_u64() >= Some(1);
        let ended = row["connections"].as_u64() >= Some(21) || !told.counts_ended;
        is_open && ended && (row["bytes"].as_u64() > Some(0) || !told.counts_bytes)
    });
    assert_eq!(view["head"]["mode"], told.dataplane);
    assert_eq!(view["head"]["node"], "node-a");
    assert_eq!(row(&view)["endpoints"], 2);
    for address in ["10.244.1.2:8080", "10.244.1.3:8080"] {
        let endpoint = endpoint(&view, address).unwrap();
        assert_eq!(
            (&endpoint["weight"], &endpoint["node"]),
            (&1.into(), &"node-a".into()),
            "{endpoint}"
        );
        assert_eq!(
            (&endpoint["fairShare"], &endpoint["outOfRotation"]),
            (&0.5.into(), &Value::Null)
        );
    }

    // The endpoint of the connection that is held leaves.
    let (leaving, staying) = match held.greeting().backend() {
        Some("pod1") => ("10.244.1.2", "10.244.1.3"),
        _ => ("10.244.1.3", "10.244.1.2"),
    };
    daemon.edit(
        &format!("- addresses: [{leaving}]\n  nodeName: node-a\n"),
        "",
    );
    let leaving = format!("{leaving}:8080");
    let view = daemon.await_view("a drain", &service, |view| {
        let is_draining = |it: &Value| it["drainSeconds"].is_u64();
        // Rows are as old as the last look at all Services.
        let is_counted = row(view)["draining"].as_u64() >= Some(1);
        is_counted && endpoint(view, &leaving).is_some_and(is_draining)
    });
    let drain = endpoint(&view, &leaving).unwrap();
    let left = drain["drainSeconds"].as_u64().unwrap();
    assert!((3_000..=3_600).contains(&left), "{drain}");
    assert_eq!(drain["outOfRotation"], "removed");
    assert_eq!(drain["active"], 1, "{drain}");
    // On a busy machine, the drain of a frontend without connections may have ended since.
    let mut changes = view["changes"].as_array().unwrap().iter();
    let is_told = changes.any(|it| it["cause"].as_str().unwrap().contains("EndpointSlice"));
    assert!(is_told, "{}", view["changes"]);
    assert!(held.ask().backend().is_some(), "the connection continues");

    // The countdown counts.
    let view = daemon.await_view("less time", &service, |view| {
        endpoint(view, &leaving).is_some_and(|it| it["drainSeconds"].as_u64() < Some(left))
    });
    drop(view);

    // The other one becomes unready.
    let ready = format!("- addresses: [{staying}]\n");
    daemon.edit(&ready, &format!("{ready}  conditions: {{ready: false}}\n"));
    let staying = format!("{staying}:8080");
    daemon.await_view("an unready endpoint", &service, |view| {
        let is_out = |it: &Value| it["outOfRotation"] == "not ready";
        let is_faulty = row(view)["faults"][0] == "no endpoint";
        is_faulty && endpoint(view, &staying).is_some_and(is_out)
    });
    let view = daemon.await_view("the fault alone", &["--wrong"], |view| {
        view["services"]["matching"].as_u64() > Some(0)
    });
    assert!(view["services"]["total"].as_u64() >= view["services"]["matching"].as_u64());

    let (is_success, text) = daemon.top(&service);
    assert!(is_success, "{text}");
    assert!(text.starts_with("ipvs-proxier "), "{text}");
    let line = text.lines().find(|line| line.contains(&leaving)).unwrap();
    assert!(line.contains("removed; draining, at most "), "{text}");
    drop(held);
}

#[test]
fn top_shows_traffic_drains_and_reasons_with_ipvs() {
    lab::test(|| {
        look_at(&Told {
            dataplane: "ipvs",
            counts_ended: true,
            counts_bytes: true,
        });
    });
}

#[test]
fn top_shows_traffic_drains_and_reasons_with_nftables() {
    lab::test(|| {
        look_at(&Told {
            dataplane: "nftables",
            counts_ended: false,
            counts_bytes: false,
        });
    });
}

#[test]
fn top_shows_traffic_drains_and_reasons_of_the_relay() {
    lab::test(|| {
        look_at(&Told {
            dataplane: "userspace",
            counts_ended: true,
            counts_bytes: false,
        });
    });
}

/// The page is off unless asked for, can only be read, and has twins and deep links.
#[test]
fn the_page_shows_what_top_shows() {
    lab::test(|| {
        let cluster = Cluster::conformance();
        let off = Daemon::start(&["--metrics-bind-address=127.0.0.1:10249"]);
        for target in ["/status", "/status.json", "/status.csv"] {
            assert!(
                request("GET", target).0.starts_with("HTTP/1.1 404"),
                "{target}"
            );
        }
        let (is_success, _) = off.top(&[]);
        assert!(is_success, "top needs no page");
        drop(off);
        let flags = ["--metrics-bind-address=127.0.0.1:10249", "--status-page"];
        let _daemon = Daemon::start(&flags);
        assert!(cluster.pod3.ask_tcp(WEB).backend().is_some());
        let (head, page) = request("GET", "/status?service=default/web&refresh=7");
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        for header in [
            "Refresh: 7",
            "Cache-Control: no-store",
            "Content-Security-Policy: default-src 'none'",
        ] {
            assert!(head.contains(header), "{header}: {head}");
        }
        for part in [
            "<h2 id=\"service\">Service default/web</h2>",
            "10.244.1.3:8080",
            "href=\"/status?service=default%2Fweb&amp;refresh=7\"",
        ] {
            assert!(page.contains(part), "{part}: {page}");
        }
        assert!(
            !page.contains("<script") && !page.contains("http://"),
            "{page}"
        );
        let twin: Value =
            serde_json::from_str(&request("GET", "/status.json?service=default/web").1).unwrap();
        assert!(endpoint(&twin, "10.244.1.2:8080").is_some(), "{twin}");
        let rows = request("GET", "/status.csv?sort=name").1;
        assert!(
            rows.lines()
                .any(|row| row.starts_with("default,web,http,TCP 10.96.1.1:80,")),
            "{rows}"
        );
        let missing = request("GET", "/status?service=default/nothing").1;
        assert!(
            missing.contains("this node serves no port of the Service"),
            "{missing}"
        );
        for method in ["POST", "PUT", "DELETE"] {
            let (head, _) = request(method, "/status");
            assert!(
                head.starts_with("HTTP/1.1 405") && head.contains("Allow: GET, HEAD"),
                "{head}"
            );
        }
        assert_eq!(request("HEAD", "/status").1, "");
    });
}

/// Only root reads the socket, one that a killed process left is replaced, and without a process `top` says so.
#[test]
fn the_socket_is_for_root_and_its_absence_has_words() {
    use std::os::unix::fs::PermissionsExt as _;
    lab::test(|| {
        let _cluster = Cluster::conformance();
        let mut killed = Daemon::start(&[]);
        let socket = state(&killed.directory).with_extension("sock");
        let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        killed.child.kill().unwrap();
        killed.child.wait().unwrap();
        assert!(socket.exists());
        let (is_success, text) = killed.top(&[]);
        assert!(
            !is_success && text.contains("no process of `ipvs-proxier run`"),
            "{text}"
        );
    });
}
