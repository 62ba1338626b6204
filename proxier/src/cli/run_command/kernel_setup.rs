//! The settings of the kernel for a dataplane.

use std::process::ExitCode;

use ipvs_netlink::Timeouts;

use super::super::Setup;
use super::super::dataplane_flags::DataplaneKind;
use crate::dataplane::ipvs::linux::Linux;
use crate::host::sysctl::{self, KernelVersion, Roots, Setting, SysctlConfig};
use crate::host::trace;
use crate::plan::ServiceAddresses;

/// `--init-only`: makes the changes for which a container must be privileged.
///
/// Exit code: 0 if every setting has its value. kube-proxy needs the API server for this; this program
/// does not.
pub(super) fn init_only(
    setup: &Setup,
    sysctl: &SysctlConfig,
    kind: DataplaneKind,
) -> anyhow::Result<ExitCode> {
    if kind == DataplaneKind::Ipvs {
        // Opening IPVS loads its module, and the settings exist only with the module.
        let mut linux = Linux::open(ServiceAddresses::default())?;
        set_ipvs_timeouts(&mut linux, setup);
    }
    let report = Roots::default().apply(&kernel_settings(sysctl, kind));
    for (setting, _) in &report.written {
        tracing::info!("set {setting}");
    }
    let warnings = report.warnings();
    for warning in &warnings {
        tracing::error!("{warning}");
    }
    Ok(match warnings.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// Deletes the table of an `explain --watch` that was killed, which kernels before 5.12 keep. A failure is logged only.
pub(super) fn remove_left_trace() {
    match trace::remove_left() {
        Ok(false) => {}
        Ok(true) => tracing::info!(
            "removed table inet {}, of a killed explain --watch",
            trace::TABLE
        ),
        Err(error) => tracing::warn!("table inet {}: {error}", trace::TABLE),
    }
}

/// Sets the timeouts of IPVS. A failure is logged only, as in kube-proxy.
pub(super) fn set_ipvs_timeouts(linux: &mut Linux, setup: &Setup) {
    let timeouts = setup.settings.ipvs_timeouts;
    if timeouts == Timeouts::default() {
        return;
    }
    match linux.set_ipvs_timeouts(&timeouts) {
        Ok(()) => tracing::info!(
            tcp = timeouts.tcp_secs,
            tcp_fin = timeouts.tcp_fin_secs,
            udp = timeouts.udp_secs,
            "set the IPVS timeouts, in seconds; 0 keeps the kernel's"
        ),
        Err(error) => tracing::error!("{error}; IPVS keeps its timeouts"),
    }
}

/// The idle time after which Linux probes a connection with keepalives (`net.ipv4.tcp_keepalive_time`), in seconds.
const KEEPALIVE_SECS: u32 = 7_200;

/// Logs whether IPVS forgets idle TCP connections that their clients keep.
///
/// Not as a warning: the kernel's default does on every node.
pub(super) fn tell_idle_timeout(linux: &mut Linux) {
    let established = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established";
    let tracked = std::fs::read_to_string(established);
    let tracked = tracked.ok().and_then(|text| text.trim().parse().ok());
    match linux.ipvs_timeouts() {
        Ok(timeouts) => {
            if let Some(text) = idle_notice(timeouts.tcp_secs, tracked) {
                tracing::info!("{text}");
            }
        }
        Err(error) => tracing::warn!("{error}; the idle timeout of IPVS is unknown"),
    }
}

/// Returns what to say about an idle timeout of IPVS; `tracked` is that of connection tracking. Both are in seconds.
fn idle_notice(idle: u32, tracked: Option<u32>) -> Option<String> {
    let tracked = tracked.filter(|tracked| idle < *tracked);
    if idle >= KEEPALIVE_SECS && tracked.is_none() {
        return None;
    }
    let tracked = tracked.map(|it| format!(", connection tracking after {it} s"));
    Some(format!(
        "IPVS forgets a TCP connection that is idle for {idle} s, and its next packet is answered by a reset; keepalives \
         usually begin after {KEEPALIVE_SECS} s{}: set --ipvs-tcp-timeout (ipvs.tcpTimeout) to more than the longest idle \
         time of clients",
        tracked.unwrap_or_default()
    ))
}

/// Returns the desired settings of this machine's kernel, for a dataplane.
pub(super) fn kernel_settings(config: &SysctlConfig, kind: DataplaneKind) -> Vec<Setting> {
    let processors = std::thread::available_parallelism().map_or(1, |count| count.get());
    let processors = u32::try_from(processors).unwrap_or(u32::MAX);
    // If the kernel's version is unreadable, treat it as newer than all known ones: only old kernels need additional
    // settings.
    let kernel = || sysctl::kernel().unwrap_or(KernelVersion(u32::MAX, 0));
    let ipvs = (kind == DataplaneKind::Ipvs).then(kernel);
    sysctl::desired_settings(config, ipvs, processors)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_timeout_below_keepalives_or_connection_tracking_is_told() {
        for (idle, tracked, expected) in [
            (900, Some(86_400), Some("connection tracking after 86400 s")),
            (900, None, Some("keepalives usually begin after 7200 s:")),
            (7_200, Some(86_400), Some("idle for 7200 s")),
            (86_400, Some(86_400), None),
            (7_200, None, None),
            (
                900,
                Some(600),
                Some("keepalives usually begin after 7200 s:"),
            ),
        ] {
            let text = idle_notice(idle, tracked);
            let is_expected = match (&text, expected) {
                (Some(text), Some(part)) => text.contains(part),
                (text, expected) => text.is_none() && expected.is_none(),
            };
            assert!(is_expected, "{idle} {tracked:?}: {text:?}");
        }
    }
}
