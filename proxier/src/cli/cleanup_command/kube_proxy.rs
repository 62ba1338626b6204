//! The part of `--cleanup` that removes kube-proxy's objects.

use std::collections::BTreeSet;
use std::iter;
use std::process::ExitCode;
use std::time::Duration;

use ipvs_netlink as ipvs;

use super::Cleanup;
use crate::cluster::model::Cidr;
use crate::dataplane::Failure;
use crate::dataplane::ipvs::Kernel as _;
use crate::dataplane::ipvs::op::Op;
use crate::host::predecessor::legacy;

/// The number of attempts. The kernel lowers the count of an ipset's uses some time after it removed a rule.
const TRIES: u32 = 20;

/// The pause between two tries.
const PAUSE: Duration = Duration::from_millis(200);

impl Cleanup<'_> {
    /// Returns the Ops that remove all virtual servers and the carrier.
    ///
    /// Unlike kube-proxy's flag, this one respects `--ipvs-exclude-cidrs`: the operator asked for these
    /// virtual servers to stay.
    fn ops_of_kube_proxy(&mut self) -> Result<Vec<Op>, Failure> {
        let excluded = &self.flags.exclude.ipvs_exclude_cidrs;
        let is_excluded = |key: &ipvs::ServiceKey| {
            let within = |address| excluded.iter().any(|range: &Cidr| range.contains(address));
            key.address().is_some_and(within)
        };
        let mut keys = BTreeSet::new();
        let linux = self.proxier.kernel();
        linux.virtual_servers(&mut iter::empty(), &mut |found| _ = keys.insert(found.key))?;
        keys.retain(|key| !is_excluded(key));
        let mut ops: Vec<Op> = keys.into_iter().map(Op::DeleteService).collect();
        if linux.addresses()?.carrier.is_some() {
            // Its addresses end with it.
            ops.push(Op::DeleteCarrier);
        }
        Ok(ops)
    }

    /// Returns one line for each object that [`Cleanup::remove_kube_proxys`] would remove after `ours`.
    pub(super) fn preview_kube_proxys(&mut self, ours: &[Op]) -> anyhow::Result<Vec<String>> {
        let mut ops = self.ops_of_kube_proxy()?;
        ops.retain(|op| !ours.contains(op));
        let mut lines: Vec<String> = ops.iter().map(ToString::to_string).collect();
        let found = self.leftovers.find()?.lines();
        lines.extend(found.iter().map(|line| format!("delete {line}")));
        for command in legacy::programs_with(legacy::IPVS_MODE) {
            lines.push(format!("not deleted by this program: run `{command}`"));
        }
        Ok(lines)
    }

    /// Removes the objects that kube-proxy's own flag removes.
    pub(super) fn remove_kube_proxys(&mut self) -> anyhow::Result<ExitCode> {
        let ops = self.ops_of_kube_proxy()?;
        let has_succeeded = self.apply(&ops);
        let mut found = self.leftovers.find()?;
        for line in found.lines() {
            tracing::info!("delete {line}");
        }
        for _ in 0..TRIES {
            self.leftovers.remove(&found)?;
            found = self.leftovers.find()?;
            if found.is_empty() {
                break;
            }
            std::thread::sleep(PAUSE);
        }
        for line in found.lines() {
            tracing::error!("{line} stays: a rule of another program uses it");
        }
        for command in legacy::programs_with(legacy::IPVS_MODE) {
            tracing::warn!(
                "the tables of iptables-legacy are in use, and this program cannot change them; if \
                 kube-proxy used them, run `{command}`, then this command again"
            );
        }
        Ok(match found.is_empty() && has_succeeded {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        })
    }
}
