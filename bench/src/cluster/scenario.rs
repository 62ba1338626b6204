//! The scenario of a run: the size of the cluster, and its events.

use anyhow::{Context as _, ensure};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use super::population::{ChangeKind, Families, Shape};

/// A named run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Scenario {
    pub(crate) name: String,
    pub(crate) shape: Shape,
    pub(crate) churn: Churn,
    /// How long nothing changes while CPU time is measured, in seconds.
    pub(crate) idle_secs: u32,
    pub(crate) phases: Vec<Phase>,
    pub(crate) seed: u64,
}

/// The changes of a cluster.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Churn {
    pub(crate) kind: ChangeKind,
    pub(crate) per_second: u32,
    pub(crate) secs: u32,
}

/// A part of a run. The first programming is always measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Phase {
    /// Nothing changes.
    Idle,
    /// Objects change at a steady rate.
    Churn,
    /// A client on the node connects to the last Service, and asks its endpoints.
    Way,
    /// All watches end, and their resource versions are gone.
    Relist,
    /// All watches end, and can continue.
    Reset,
    /// The API server refuses connections for 10 s. Objects change in this time.
    Outage,
    /// The API server accepts requests and answers none for 10 s. Objects change in this time.
    Slow,
    /// Another program empties the kernel's table.
    Flush,
}

const ALL: &[Phase] = &[
    Phase::Idle,
    Phase::Churn,
    Phase::Relist,
    Phase::Reset,
    Phase::Outage,
    Phase::Slow,
    Phase::Flush,
];
const CHURN: &[Phase] = &[Phase::Churn];

/// A shipped scenario.
#[derive(Clone, Copy)]
struct Row {
    name: &'static str,
    about: &'static str,
    shape: Shape,
    change: ChangeKind,
    /// Changes per second.
    changes: u32,
    phases: &'static [Phase],
}

/// Returns a scenario in which Pods are replaced at 100 per second, with all phases.
const fn row(name: &'static str, about: &'static str, services: u32, endpoints: u32) -> Row {
    Row {
        name,
        about,
        shape: Shape {
            services,
            endpoints,
            families: Families::V4,
            node_ports: 0,
            node_addresses: 1,
        },
        change: ChangeKind::Replace,
        changes: 100,
        phases: ALL,
    }
}

/// Returns a scenario in which only the way of a packet is measured.
const fn way(name: &'static str, about: &'static str, services: u32) -> Row {
    Row {
        phases: &[Phase::Way],
        ..row(name, about, services, 1)
    }
}

const SHIPPED: &[Row] = &[
    row("1k", "1,000 Services x 10", 1_000, 10),
    row("10k", "10,000 Services x 10", 10_000, 10),
    row("44k", "44,000 Services x 1", 44_000, 1),
    row("5k", "5,000 Services x 50", 5_000, 50),
    Row {
        phases: CHURN,
        ..row("churn-100", "100 changes/s at 10,000 x 10", 10_000, 10)
    },
    Row {
        changes: 1_000,
        phases: CHURN,
        ..row("churn-1000", "1,000 changes/s at 10,000 x 10", 10_000, 10)
    },
    Row {
        change: ChangeKind::Rolling,
        changes: 500,
        phases: CHURN,
        ..row("rolling", "all 2,000 Deployments restart", 2_000, 10)
    },
    Row {
        phases: &[Phase::Relist, Phase::Reset],
        ..row("relist", "relist storm of 44,000 Services", 44_000, 1)
    },
    row("one", "one Service with 5,000 endpoints", 1, 5_000),
    Row {
        shape: Shape {
            node_ports: 2_000,
            node_addresses: 8,
            ..row("", "", 2_000, 10).shape
        },
        ..row("node-ports", "2,000 node ports on 8 addresses", 2_000, 10)
    },
    Row {
        shape: Shape {
            families: Families::Dual,
            ..row("", "", 5_000, 10).shape
        },
        ..row("dual", "5,000 dual-stack Services x 10", 5_000, 10)
    },
    way("way-100", "the way of a packet, 100 Services", 100),
    way("way-1k", "the same, 1,000 Services", 1_000),
    way("way-10k", "the same, 10,000 Services", 10_000),
    way("way-44k", "the same, 44,000 Services", 44_000),
];

/// Flags that change a shipped scenario.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Parameters {
    /// Number of Services.
    #[arg(long, value_name = "NUMBER")]
    services: Option<u32>,

    /// Endpoints per Service and family.
    #[arg(long, value_name = "NUMBER")]
    endpoints: Option<u32>,

    /// Address families of the Services.
    #[arg(long, value_enum)]
    families: Option<Families>,

    /// Number of Services that have a node port.
    #[arg(long, value_name = "NUMBER")]
    node_ports: Option<u32>,

    /// Number of addresses of the node.
    #[arg(long, value_name = "NUMBER")]
    node_addresses: Option<u8>,

    /// Changes per second.
    #[arg(long, value_name = "NUMBER")]
    changes: Option<u32>,

    /// What changes.
    #[arg(long, value_enum)]
    change: Option<ChangeKind>,

    /// Duration of the changes, in seconds.
    #[arg(long, value_name = "SECONDS")]
    duration: Option<u32>,

    /// How long nothing changes while CPU time is measured, in seconds.
    #[arg(long, value_name = "SECONDS")]
    idle: Option<u32>,

    /// What is measured after the first programming.
    #[arg(long, value_enum, value_delimiter = ',')]
    phases: Option<Vec<Phase>>,

    /// Seed of the choice of objects that change.
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
}

impl Scenario {
    /// Returns a shipped scenario with the changes of `parameters`.
    pub(crate) fn named(name: &str, parameters: &Parameters) -> anyhow::Result<Self> {
        let row = SHIPPED.iter().find(|row| row.name == name);
        let row =
            row.with_context(|| format!("no scenario is called {name:?}; --list shows all"))?;
        let given = parameters.clone();
        let shape = Shape {
            services: given.services.unwrap_or(row.shape.services),
            endpoints: given.endpoints.unwrap_or(row.shape.endpoints),
            families: given.families.unwrap_or(row.shape.families),
            node_ports: given.node_ports.unwrap_or(row.shape.node_ports),
            node_addresses: given.node_addresses.unwrap_or(row.shape.node_addresses),
        };
        let kind = given.change.unwrap_or(row.change);
        let per_second = given.changes.unwrap_or(row.changes);
        // A rolling restart ends with the last Pod, so its duration follows from the number of
        // Pods.
        let secs = match kind {
            ChangeKind::Rolling => (shape.services * shape.endpoints).div_ceil(per_second.max(1)),
            _ => 30,
        };
        let scenario = Self {
            name: row.name.to_owned(),
            shape,
            churn: Churn {
                kind,
                per_second,
                secs: given.duration.unwrap_or(secs),
            },
            idle_secs: given.idle.unwrap_or(60),
            phases: given.phases.unwrap_or_else(|| row.phases.to_vec()),
            seed: given.seed.unwrap_or(1),
        };
        scenario.check()?;
        Ok(scenario)
    }

    fn check(&self) -> anyhow::Result<()> {
        let shape = &self.shape;
        ensure!(shape.services > 0, "--services must be at least 1");
        ensure!(
            shape.services <= 1_000_000,
            "--services: the service range 10.96.0.0/12 has room for 1,000,000"
        );
        ensure!(self.churn.per_second > 0, "--changes must be at least 1");
        ensure!(
            shape
                .endpoints
                .checked_mul(shape.services)
                .is_some_and(|pods| pods <= 4_000_000),
            "--endpoints: the Pod range 10.128.0.0/9 has room for 4,000,000 Pods and their replacements"
        );
        ensure!(
            shape.node_ports <= 2_768,
            "--node-ports: Kubernetes has 2,768 node ports (30000 to 32767)"
        );
        ensure!(
            (1..=200).contains(&shape.node_addresses),
            "--node-addresses must be 1 to 200"
        );
        Ok(())
    }

    /// Returns the cluster's size, as `1,000 x 10`.
    pub(crate) fn size(&self) -> String {
        let thousands = crate::figures::thousands;
        let Shape {
            services,
            endpoints,
            ..
        } = self.shape;
        format!("{} x {}", thousands(services), thousands(endpoints))
    }
}

/// Returns the shipped scenarios with their descriptions.
pub(crate) fn list() -> String {
    let lines = SHIPPED
        .iter()
        .map(|row| format!("{:<11} {}\n", row.name, row.about));
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_change_a_shipped_scenario() {
        let parameters = Parameters {
            services: Some(20),
            phases: Some(vec![Phase::Churn]),
            ..Parameters::default()
        };
        let scenario = Scenario::named("10k", &parameters).unwrap();
        assert_eq!(scenario.size(), "20 x 10");
        assert_eq!(scenario.phases, [Phase::Churn]);
        assert!(Scenario::named("x", &parameters).is_err());
        for row in SHIPPED {
            Scenario::named(row.name, &Parameters::default()).unwrap();
        }
        let rolling = Scenario::named("rolling", &Parameters::default()).unwrap();
        assert_eq!(rolling.churn.secs, 40, "20,000 Pods, 500 per second");
    }
}
