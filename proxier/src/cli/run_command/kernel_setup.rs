//! The settings of the kernel for a dataplane.

use std::process::ExitCode;

use ipvs_netlink::Timeouts;

use super::super::Setup;
use super::super::dataplane_flags::DataplaneKind;
use crate::dataplane::ipvs::linux::Linux;
use crate::host::sysctl::{self, KernelVersion, Roots, Setting, SysctlConfig};
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
