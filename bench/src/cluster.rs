//! `bench cluster`: service proxies in a large cluster, compared.
//!
//! The program boots a lab kernel and runs itself in it. There it measures one proxy after the
//! other. Each gets a network namespace, an API server with the objects of a generated cluster, and
//! the phases of a [`Scenario`]. The results leave the lab as lines of JSON and become the report
//! outside.
//!
//! ```text
//!   population ─▶ api ──TLS──▶ proxy under test ──netlink──▶ kernel
//!       ▲                          │ subject                   │ tap: each message, with its time
//!      run: phases ◀── CPU, memory ┘                           ▼
//!       └────────────────────────────────────────────▶ outcome ─▶ report
//! ```

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, ensure};
use clap::Args;
use lab::machine::Memory;

use crate::report::Output;
use crate::{inside, process};
use api::ApiKind;
use machine::Machine;
use outcome::Outcome;
use results::Results;
use scenario::{Parameters, Scenario};
use subject::{KubeProxy, Subject};

mod api;
mod clients;
mod datagram;
mod kernel;
mod limit;
mod machine;
pub(crate) mod objects;
mod outcome;
mod population;
mod probe;
mod report;
mod results;
mod run;
mod scenario;
mod subject;
mod tap;
mod way;

/// Flags of `bench cluster`.
#[derive(Args, Debug)]
pub(crate) struct Flags {
    /// The scenarios to run; --list shows all.
    #[arg(
        long,
        value_name = "NAME,..",
        value_delimiter = ',',
        default_value = "1k"
    )]
    scenario: Vec<String>,

    /// List the scenarios.
    #[arg(long)]
    list: bool,

    #[command(flatten)]
    parameters: Parameters,

    /// The dataplanes of this project to measure.
    #[arg(long, value_delimiter = ',', default_value = "ipvs", value_parser = ["ipvs", "nftables"])]
    dataplane: Vec<String>,

    /// Another proxy to measure: a command line without quotes, with {kubeconfig} in it. {node} is
    /// replaced by the name of the node, {folder} by a folder for its files. May be repeated.
    #[arg(long, value_name = "COMMAND")]
    peer: Vec<String>,

    /// Measure kube-proxy from the folder KUBEBUILDER_ASSETS in these modes.
    #[arg(long, value_enum, value_delimiter = ',')]
    kube_proxy: Vec<KubeProxy>,

    /// Measure the peers only.
    #[arg(long)]
    peers_only: bool,

    /// The ipvs-proxier executable [default: the one in this program's directory].
    #[arg(long, value_name = "PATH")]
    proxier: Option<PathBuf>,

    /// The API server.
    #[arg(long, value_enum, default_value = "own")]
    api: ApiKind,

    /// How often each proxy is measured; scenarios and proxies take turns.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    rounds: u32,

    /// The memory of the lab kernel.
    #[arg(long, value_name = "SIZE", default_value = "3072M")]
    memory: Memory,

    #[command(flatten)]
    output: Output,

    /// Measure nothing, and report the results of an earlier run.
    #[arg(long, value_name = "results.json")]
    from: Option<PathBuf>,
}

impl Flags {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        if self.list {
            print!("{}", scenario::list());
            return Ok(ExitCode::SUCCESS);
        }
        self.output.prepare()?;
        if let Some(path) = &self.from {
            return self.finish(&Results::read(path)?);
        }
        let scenarios = self.scenarios()?;
        let subjects = self.subjects()?;
        if inside::is_inside() {
            // Turns, because the speed of the host changes within minutes.
            for round in 1..=self.rounds {
                for scenario in &scenarios {
                    for subject in &subjects {
                        let outcome = measure(scenario, subject, self.api, round)?;
                        println!("{}", serde_json::to_string(&outcome)?);
                    }
                }
            }
            return Ok(ExitCode::SUCCESS);
        }
        let mut results = Results {
            machine: Machine::observe()?,
            outcomes: self.outcomes()?,
        };
        results.machine.observe_end()?;
        self.finish(&results)
    }

    fn finish(&self, results: &Results) -> anyhow::Result<ExitCode> {
        self.output.finish(results, &report::report(results))?;
        Ok(match results.failures() {
            0 => ExitCode::SUCCESS,
            _ => ExitCode::FAILURE,
        })
    }

    fn scenarios(&self) -> anyhow::Result<Vec<Scenario>> {
        let named = self.scenario.iter();
        named
            .map(|name| Scenario::named(name, &self.parameters))
            .collect()
    }

    fn subjects(&self) -> anyhow::Result<Vec<Subject>> {
        let mut subjects = Vec::new();
        if !self.peers_only {
            let program = process::proxier(self.proxier.clone())?;
            ensure!(
                program.is_file(),
                "{} is missing; build it by `cargo build --release -p proxier`",
                program.display()
            );
            let program = std::path::absolute(program)?;
            let ours = self.dataplane.iter();
            subjects.extend(ours.map(|dataplane| Subject::ours(&program, dataplane)));
        }
        for &mode in &self.kube_proxy {
            let assets = std::env::var_os("KUBEBUILDER_ASSETS")
                .context("--kube-proxy: KUBEBUILDER_ASSETS names no folder with kube-proxy")?;
            subjects.push(Subject::kube_proxy(mode, Path::new(&assets))?);
        }
        for command in &self.peer {
            subjects.push(Subject::peer(command)?);
        }
        ensure!(
            !subjects.is_empty(),
            "--peers-only needs --peer or --kube-proxy"
        );
        Ok(subjects)
    }

    /// Runs this program in the lab and returns what it measured there.
    fn outcomes(&self) -> anyhow::Result<Vec<Outcome>> {
        let kernel = lab::kernel::find_or_build()?;
        let mut lines = Vec::new();
        inside::rerun_on(kernel, self.memory, &mut |bytes| {
            lines.extend_from_slice(bytes);
            Ok(())
        })?;
        let lines = String::from_utf8(lines)?;
        let parsed = lines.lines().map(serde_json::from_str);
        parsed
            .collect::<Result<_, _>>()
            .context("reading the results from the lab")
    }
}

/// Measures one proxy. A failure becomes a note of the outcome.
fn measure(
    scenario: &Scenario,
    subject: &Subject,
    api: ApiKind,
    round: u32,
) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome {
        scenario: scenario.clone(),
        subject: subject.name.clone(),
        round,
        api: api.name().to_owned(),
        kernel: lab::kernel_release(),
        start: None,
        steps: Vec::new(),
        memory: Vec::new(),
        is_late: false,
        notes: Vec::new(),
    };
    let folder = process::temporary("cluster");
    std::fs::create_dir_all(&folder)?;
    let result =
        lab::in_fresh_network(|| run::measure(scenario, subject, api, &folder, &mut outcome))?;
    if let Err(error) = result {
        outcome.notes.push(format!("{error:#}"));
    }
    std::fs::remove_dir_all(&folder)?;
    Ok(outcome)
}
