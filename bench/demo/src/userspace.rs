//! `./demo`: starts three web servers and `ipvs-proxier run --dataplane=userspace` in front of them, sends requests,
//! takes a server away and brings it back. Needs no privileges, no cluster and no network.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

/// The Service and the endpoints of `deploy/examples/local/web.yaml`.
const SERVICE: &str = "127.96.0.80:8080";
const ENDPOINTS: [&str; 3] = ["127.80.0.1:8080", "127.80.0.2:8080", "127.80.0.3:8080"];
/// The endpoint that leaves and returns.
const LEAVING: &str = "127.80.0.2";

/// How long the program waits for the proxy.
const PATIENCE: Duration = Duration::from_secs(20);

/// Starts all, and prints who answers.
pub(crate) fn run() -> anyhow::Result<()> {
    let manifests = Manifests::create()?;
    for endpoint in ENDPOINTS {
        serve(endpoint)?;
    }
    println!(
        "{} web servers listen: {}",
        ENDPOINTS.len(),
        ENDPOINTS.join(", ")
    );
    let _proxy = Proxy::start(&manifests)?;

    let answers: Vec<String> = (0..12).map(|_| ask()).collect::<Result<_, _>>()?;
    println!("\n12 requests to http://{SERVICE}, answered by (the first server has weight 2):");
    answers.iter().for_each(|answer| println!("  {answer}"));

    let load = Load::start();
    println!("\nrequests flow; by endpoint, each second:");
    load.report("all three serve", 2);
    manifests.write(|line| !line.contains(LEAVING))?;
    load.report(&format!("{LEAVING} is removed from the EndpointSlice"), 3);
    manifests.write(|_| true)?;
    load.report("it is back", 3);
    let (requests, failed) = load.stop();
    println!("\n{requests} requests, {failed} failed");
    println!(
        "\nNext: `./demo kernel` programs the IPVS of a real kernel, which is built in ten minutes the first time."
    );
    if failed > 0 {
        bail!("{failed} requests failed");
    }
    Ok(())
}

/// A copy of the example manifests, which changes.
struct Manifests {
    directory: PathBuf,
    text: String,
}

impl Manifests {
    fn create() -> anyhow::Result<Self> {
        let example = Path::new(env!("CARGO_MANIFEST_DIR"));
        let example = example.join("../../deploy/examples/local/web.yaml");
        let text = std::fs::read_to_string(&example);
        let text = text.with_context(|| format!("reading {}", example.display()))?;
        let directory = std::env::temp_dir();
        let directory = directory.join(format!("ipvs-proxier-demo-{}", std::process::id()));
        std::fs::create_dir_all(directory.join("manifests"))?;
        let manifests = Self { directory, text };
        manifests.write(|_| true)?;
        Ok(manifests)
    }

    /// Writes the lines that `keep` accepts.
    fn write(&self, keep: impl Fn(&str) -> bool) -> anyhow::Result<()> {
        let lines = self.text.lines().filter(|line| keep(line));
        let text: String = lines.flat_map(|line| [line, "\n"]).collect();
        // Renaming replaces the file at once: the proxy never reads half of it.
        let new = self.directory.join("new");
        std::fs::write(&new, text)?;
        std::fs::rename(new, self.directory.join("manifests/web.yaml"))?;
        Ok(())
    }
}

impl Drop for Manifests {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// The running proxy. Dropping it ends the process.
struct Proxy(Child);

impl Proxy {
    fn start(manifests: &Manifests) -> anyhow::Result<Self> {
        let program = crate::proxier()?;
        println!("\n$ ipvs-proxier run --dataplane=userspace --manifests deploy/examples/local");
        let child = Command::new(&program)
            .args(["run", "--dataplane=userspace", "--node-name=this-machine"])
            .arg("--manifests")
            .arg(manifests.directory.join("manifests"))
            .arg("--state-file")
            .arg(manifests.directory.join("state"))
            .arg(format!("--healthz-bind-address={}", unused()?))
            .arg(format!("--metrics-bind-address={}", unused()?))
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("starting {}", program.display()))?;
        let mut proxy = Self(child);
        let start = Instant::now();
        while TcpStream::connect(SERVICE).is_err() {
            if let Some(status) = proxy.0.try_wait()? {
                bail!("ipvs-proxier ended: {status}");
            }
            if start.elapsed() > PATIENCE {
                bail!("{SERVICE} does not answer");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        println!(
            "{SERVICE} is served after {} ms",
            start.elapsed().as_millis()
        );
        Ok(proxy)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a web server that answers each request with its address.
fn serve(endpoint: &'static str) -> anyhow::Result<()> {
    let listener = TcpListener::bind(endpoint);
    let listener = listener.with_context(|| format!("listening at {endpoint}"))?;
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || answer(stream, endpoint));
        }
    });
    Ok(())
}

fn answer(mut stream: TcpStream, endpoint: &str) {
    let mut request = [0; 4_096];
    if !matches!(stream.read(&mut request), Ok(1..)) {
        return;
    }
    let body = format!("{endpoint}\n");
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n", body.len());
    let _ = stream.write_all(format!("{head}Connection: close\r\n\r\n{body}").as_bytes());
}

/// Returns the endpoint that answers a request.
fn ask() -> anyhow::Result<String> {
    let mut stream = TcpStream::connect(SERVICE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(format!("GET / HTTP/1.1\r\nHost: {SERVICE}\r\n\r\n").as_bytes())?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let body = text
        .split_once("\r\n\r\n")
        .context("an incomplete answer")?
        .1;
    Ok(body.trim().to_owned())
}

/// Returns an unused address for a server that this demonstration does not use.
fn unused() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

/// Requests that flow until [`Load::stop`].
struct Load {
    counts: Arc<Mutex<Counts>>,
    is_over: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<()>,
}

#[derive(Default)]
struct Counts {
    by_endpoint: BTreeMap<String, u64>,
    requests: u64,
    failed: u64,
}

impl Load {
    fn start() -> Self {
        let counts: Arc<Mutex<Counts>> = Arc::default();
        let is_over: Arc<AtomicBool> = Arc::default();
        let (shared, stop) = (counts.clone(), is_over.clone());
        let thread = std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let answer = ask();
                let mut counts = shared.lock().unwrap_or_else(PoisonError::into_inner);
                counts.requests += 1;
                match answer {
                    Ok(endpoint) => *counts.by_endpoint.entry(endpoint).or_default() += 1,
                    Err(_) => counts.failed += 1,
                }
                drop(counts);
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        Self {
            counts,
            is_over,
            thread,
        }
    }

    /// Prints who answered in each of the next seconds.
    fn report(&self, situation: &str, seconds: u32) {
        println!("  {situation}");
        for _ in 0..seconds {
            self.take();
            std::thread::sleep(Duration::from_secs(1));
            let counts = self.take();
            let columns = ENDPOINTS.map(|endpoint| {
                let count = counts.get(endpoint).copied().unwrap_or(0);
                format!("{endpoint} {count:>4}")
            });
            println!("    {}", columns.join("   "));
        }
    }

    fn take(&self) -> BTreeMap<String, u64> {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut counts.by_endpoint)
    }

    /// Ends the requests. Returns how many there were, and how many failed.
    fn stop(self) -> (u64, u64) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = self.thread.join();
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        (counts.requests, counts.failed)
    }
}
