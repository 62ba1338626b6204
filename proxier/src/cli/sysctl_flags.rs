//! Flags about kernel settings.

use std::time::Duration;

use clap::Args;

use super::DurationFlag;
use crate::sysctl::{self, Conntrack, KernelVersion, Setting, SysctlConfig};

/// Flags about kernel settings; names, meaning and defaults are kube-proxy's.
#[derive(Args, Debug)]
pub(super) struct SysctlFlags {
    /// Do not answer or announce service addresses by ARP (arp_ignore=1, arp_announce=2).
    #[arg(long, num_args = 0..=1, default_missing_value = "true", default_value = "false")]
    #[arg(require_equals = true, action = clap::ArgAction::Set)]
    ipvs_strict_arp: bool,

    /// Maximum of tracked connections per processor; 0 keeps the kernel's limit.
    #[arg(long, value_name = "COUNT", default_value = "32768")]
    conntrack_max_per_core: u32,

    /// Lower bound of the limit that --conntrack-max-per-core gives.
    #[arg(long, value_name = "COUNT", default_value = "131072")]
    conntrack_min: u32,

    /// How long the kernel tracks idle TCP connections; 0 keeps its setting.
    #[arg(long, value_name = "DURATION", default_value = "24h")]
    conntrack_tcp_timeout_established: DurationFlag,

    /// How long the kernel tracks half-closed TCP connections; 0 keeps its setting.
    #[arg(long, value_name = "DURATION", default_value = "1h")]
    conntrack_tcp_timeout_close_wait: DurationFlag,

    /// Treat TCP packets outside the window as valid, too.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", default_value = "false")]
    #[arg(require_equals = true, action = clap::ArgAction::Set)]
    conntrack_tcp_be_liberal: bool,

    /// How long the kernel tracks UDP flows without an answer; 0 keeps its setting.
    #[arg(long, value_name = "DURATION", default_value = "0")]
    conntrack_udp_timeout: DurationFlag,

    /// How long the kernel tracks UDP flows with answers; 0 keeps its setting.
    #[arg(long, value_name = "DURATION", default_value = "0")]
    conntrack_udp_timeout_stream: DurationFlag,
}

impl SysctlFlags {
    /// Returns the desired settings of this machine's kernel.
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
        // If the kernel's version is unreadable, treat it as newer than all known ones: only old
        // kernels need additional settings.
        let kernel = sysctl::kernel().unwrap_or(KernelVersion(u32::MAX, 0));
        sysctl::desired_settings(&config, kernel, processors)
    }
}
