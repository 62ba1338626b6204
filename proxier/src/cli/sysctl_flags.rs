//! Kernel settings.

use std::time::Duration;

use clap::Args;

use super::DurationFlag;
use crate::sysctl::{self, Conntrack, KernelVersion, Setting, SysctlConfig};

/// Flags about kernel settings; names, meaning and defaults are kube-proxy's.
#[derive(Args, Debug)]
pub(super) struct SysctlFlags {
    /// Announce service addresses on no link (arp_ignore, arp_announce).
    #[arg(long, num_args = 0..=1, default_missing_value = "true", default_value = "false")]
    #[arg(require_equals = true, action = clap::ArgAction::Set)]
    ipvs_strict_arp: bool,

    /// Connections to track per processor at most; 0 leaves the kernel's limit.
    #[arg(long, value_name = "COUNT", default_value = "32768")]
    conntrack_max_per_core: u32,

    /// Connections to track at most, where --conntrack-max-per-core gives less.
    #[arg(long, value_name = "COUNT", default_value = "131072")]
    conntrack_min: u32,

    /// How long idle TCP connections are remembered; 0 leaves the kernel's setting.
    #[arg(long, value_name = "DURATION", default_value = "24h")]
    conntrack_tcp_timeout_established: DurationFlag,

    /// How long half-closed TCP connections are remembered; 0 leaves the kernel's setting.
    #[arg(long, value_name = "DURATION", default_value = "1h")]
    conntrack_tcp_timeout_close_wait: DurationFlag,

    /// Track TCP packets outside the window, too.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", default_value = "false")]
    #[arg(require_equals = true, action = clap::ArgAction::Set)]
    conntrack_tcp_be_liberal: bool,

    /// How long UDP flows without an answer are remembered; 0 leaves the kernel's setting.
    #[arg(long, value_name = "DURATION", default_value = "0")]
    conntrack_udp_timeout: DurationFlag,

    /// How long UDP flows with answers are remembered; 0 leaves the kernel's setting.
    #[arg(long, value_name = "DURATION", default_value = "0")]
    conntrack_udp_timeout_stream: DurationFlag,
}

impl SysctlFlags {
    /// What this machine's kernel should be set to.
    pub(super) fn settings(&self) -> Vec<Setting> {
        let time = |flag: DurationFlag| Some(flag.0).filter(|time| *time > Duration::ZERO);
        let config = SysctlConfig {
            strict_arp: self.ipvs_strict_arp,
            conntrack: Conntrack {
                max_per_core: Some(self.conntrack_max_per_core),
                min: Some(self.conntrack_min),
                tcp_established: time(self.conntrack_tcp_timeout_established),
                tcp_close_wait: time(self.conntrack_tcp_timeout_close_wait),
                tcp_be_liberal: self.conntrack_tcp_be_liberal,
                udp: time(self.conntrack_udp_timeout),
                udp_stream: time(self.conntrack_udp_timeout_stream),
            },
        };
        let processors = std::thread::available_parallelism().map_or(1, |count| count.get());
        let processors = u32::try_from(processors).unwrap_or(u32::MAX);
        // A kernel that does not say its version is a new one.
        let kernel = sysctl::kernel().unwrap_or(KernelVersion(u32::MAX, 0));
        sysctl::desired_settings(&config, kernel, processors)
    }
}
