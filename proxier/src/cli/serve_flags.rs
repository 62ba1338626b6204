//! Flags about the HTTP servers.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use clap::Args;
use serde_json::json;

use super::dataplane_flags::DataplaneKind;
use super::{DurationFlag, Setup};
use crate::cli::config::Resolved;
use crate::cluster::model::Family;
use crate::dataplane::ipvs::Owners;
use crate::observe::health::Limits;
use crate::observe::instruments::Exporter;
use crate::observe::serve::{OnBindFailure, ProcessInfo, Scraper, ServeConfig, TrafficCounter};

/// Flags about the HTTP servers that kube-proxy does not have.
#[derive(Args, Debug)]
pub(super) struct ServeFlags {
    /// How long the kernel may refuse the packet rules, or more than half of the virtual servers and
    /// addresses, before /healthz fails; 0 never [default: twice --ipvs-sync-period]. kube-proxy has no
    /// such flag.
    #[arg(long, value_name = "DURATION")]
    healthz_kernel_timeout: Option<DurationFlag>,

    /// How long the API server may reject this node's requests (status 4xx) before /healthz fails; each
    /// node adds up to the same time, by its name; 0 never. kube-proxy has no such flag.
    #[arg(long, value_name = "DURATION", default_value = "30m")]
    healthz_api_timeout: DurationFlag,

    /// How long the API server may send nothing (a change, or the bookmark of each minute) before /healthz
    /// fails; each node adds up to the same time, by its name; 0 never, because an outage of the API
    /// server would take all nodes out of all load balancers. kube-proxy has no such flag.
    #[arg(long, value_name = "DURATION", default_value = "0")]
    healthz_silence_timeout: DurationFlag,

    /// The most endpoints, counted once per virtual server, up to which each has metrics of its own; 0
    /// for none. Needs IPVS and metrics of Services. kube-proxy has no such flag.
    #[arg(long, value_name = "NUMBER", default_value = "0")]
    endpoint_metrics_limit: usize,

    /// Serve the page /status at --metrics-bind-address, and its twins /status.json and /status.csv: the
    /// Services of this node, their endpoints and their traffic. They show the names of Services and the
    /// addresses of Pods to everyone who can connect. kube-proxy has no such flag.
    #[arg(long)]
    status_page: bool,
}

impl ServeFlags {
    /// Returns the source of `/metrics`.
    pub(super) fn scraper(
        &self,
        exporter: Exporter,
        owners: Arc<Owners>,
        kind: DataplaneKind,
    ) -> Scraper {
        let counter = match kind {
            DataplaneKind::Ipvs => TrafficCounter::Ipvs,
            DataplaneKind::Nftables => TrafficCounter::Nftables,
            DataplaneKind::Userspace => TrafficCounter::None,
        };
        Scraper::new(exporter, owners, counter, self.endpoint_metrics_limit)
    }

    /// Returns the servers to start.
    pub(super) fn config(
        &self,
        setup: &Setup,
        (resolved, mode): (&Resolved, &'static str),
        scraper: Scraper,
        socket: PathBuf,
        on_bind_failure: OnBindFailure,
    ) -> ServeConfig {
        let settings = &setup.settings;
        // As in kube-proxy.
        let freshness = settings.sync_period * 2;
        let limit = |limit: Duration| (!limit.is_zero()).then_some(limit);
        let of_api = |flag: DurationFlag| {
            limit(flag.0).map(|limit| Limits::staggered(limit, &setup.plan.node_name))
        };
        let kernel = self.healthz_kernel_timeout.map(|flag| flag.0);
        let mut configuration = resolved.to_json();
        // Not the mode in the file: as `/proxyMode`, this names the mode in which the program runs.
        configuration["mode"] = mode.into();
        ServeConfig {
            healthz: settings.servers.healthz,
            metrics: settings.servers.metrics,
            shows_status: self.status_page,
            socket,
            on_bind_failure,
            scraper,
            limits: Limits {
                freshness,
                kernel: limit(kernel.unwrap_or(freshness)),
                api: of_api(self.healthz_api_timeout),
                silence: of_api(self.healthz_silence_timeout),
            },
            process: ProcessInfo {
                families: families(),
                mode,
                started: SystemTime::now(),
                configz: json!({"kubeproxy.config.k8s.io": configuration}).to_string(),
            },
        }
    }
}

/// Returns the families that this machine has.
fn families() -> Vec<Family> {
    // The file exists if the kernel has IPv6 and did not disable it at its start.
    match std::fs::exists("/proc/net/if_inet6") {
        Ok(true) => vec![Family::V4, Family::V6],
        _ => vec![Family::V4],
    }
}
