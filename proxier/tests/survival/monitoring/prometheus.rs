//! Debian's Prometheus, which scrapes the daemon.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::http;

const PORT: u16 = 9090;

/// A running Prometheus. Dropping it ends it.
pub(super) struct Prometheus {
    process: Child,
    directory: TempDir,
}

/// A sample that a query returned.
#[derive(Debug)]
pub(super) struct Sample {
    pub(super) labels: Value,
    pub(super) value: f64,
}

impl Prometheus {
    /// Starts a server that scrapes port 10249 each second, and evaluates these files of rules as often.
    ///
    /// The target has the labels that the PodMonitor of `deploy/` gives it.
    pub(super) fn start(rules: &[&Path]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        // JSON is YAML.
        let config = json!({
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": rules,
            "scrape_configs": [{
                "job_name": "kube-proxy",
                "static_configs": [{
                    "targets": ["127.0.0.1:10249"],
                    "labels": {
                        "instance": "node-a", "namespace": "kube-system", "pod": "ipvs-proxier-x7k2p",
                        "container": "ipvs-proxier", "endpoint": "metrics",
                    },
                }],
            }],
        });
        let file = directory.path().join("prometheus.yml");
        std::fs::write(&file, config.to_string()).unwrap();
        let log = std::fs::File::create(directory.path().join("log")).unwrap();
        let process = Command::new("prometheus")
            .arg(format!("--config.file={}", file.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                directory.path().join("data").display()
            ))
            .arg(format!("--web.listen-address=127.0.0.1:{PORT}"))
            .arg("--log.level=warn")
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("prometheus, of Debian's package of that name");
        Self { process, directory }
    }

    /// Returns the samples that an expression has now; none also while the server starts.
    ///
    /// # Panics
    /// If the expression is invalid.
    #[track_caller]
    pub(super) fn query(&self, expression: &str) -> Vec<Sample> {
        let path = format!("/api/v1/query?query={}", percent_encoded(expression));
        let body = http::get(PORT, &path).unwrap_or_default();
        let Ok(answer) = serde_json::from_str::<Value>(&body) else {
            return Vec::new();
        };
        assert_eq!(answer["status"], "success", "{expression}: {answer}");
        let result = answer["data"]["result"].as_array().unwrap();
        let sample = |sample: &Value| Sample {
            labels: sample["metric"].clone(),
            value: sample["value"][1].as_str().unwrap().parse().unwrap(),
        };
        result.iter().map(sample).collect()
    }
}

fn percent_encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // Fails if the process has exited already.
        let _ = self.process.kill();
        let _ = self.process.wait();
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.directory.path().join("log"));
            eprintln!("{}", log.unwrap_or_default());
        }
    }
}
