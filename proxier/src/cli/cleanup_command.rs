//! The command `ipvs-proxier cleanup`, and the flag `--cleanup` of kube-proxy.
//!
//! | | removes |
//! |---|---|
//! | `cleanup` | what this program created, and nothing else |
//! | `--cleanup` | the same, then what kube-proxy's flag removes: all virtual servers, the device `kube-ipvs0`, kube-proxy's chains, tables and ipsets |
//!
//! If kube-proxy serves the node again in IPVS mode, it uses the virtual servers that this program created,
//! with their connections, and has added its addresses to the carrier. So these are no longer ours, and
//! `cleanup` leaves them.

use std::collections::BTreeSet;
use std::iter;
use std::process::ExitCode;
use std::time::Duration;

use ::nftables::RulesClient;
use clap::{Args, ValueEnum};

use super::{DurationFlag, ExcludeFlags, ServiceAddressesFlag, StateFlags, print};
use crate::cluster::model::Cidr;
use crate::daemon::StandingsFile;
use crate::dataplane::Outcomes;
use crate::dataplane::answer_path::AnswerPath;
use crate::dataplane::ipvs::filter;
use crate::dataplane::ipvs::ledger::LedgerLock;
use crate::dataplane::ipvs::linux::Linux;
use crate::dataplane::ipvs::op::{AddressForm, Op};
use crate::dataplane::ipvs::{Ipvs, Kernel as _, NamedOp};
use crate::dataplane::namespace_lock::NamespaceLock;
use crate::dataplane::nftables;
use crate::host::predecessor::{LeftoverClient, MarkChainUse, signs};
use crate::host::{
    self, ForeignChains, MarkChains, Removal, TableName, Treatment, Treatments, trace,
};
use crate::plan::{PlanConfig, ServiceAddresses};
use crate::reconcile::Proxier;
use crate::util::clock;
use successor::Successor;

mod handover;
mod kube_proxy;
mod successor;

/// The maximum number of remaining virtual servers that the error message names.
const SAMPLES: usize = 10;

/// Every address. If kube-proxy serves the node again, no virtual server is ours.
const EVERYWHERE: [&str; 2] = ["0.0.0.0/0", "::/0"];

/// Flags of `cleanup`.
#[derive(Args, Debug)]
pub(super) struct Flags {
    #[command(flatten)]
    pub(super) state: StateFlags,

    /// How `run` made service addresses local.
    #[arg(long, value_enum, default_value_t)]
    pub(super) service_addresses: ServiceAddressesFlag,

    #[command(flatten)]
    pub(super) exclude: ExcludeFlags,

    #[command(flatten)]
    pub(super) successor: SuccessorFlag,

    /// With a kube-proxy that serves again: how long connections continue that it cannot take over, those of
    /// Pods and of the node to external addresses of Services with policy Local; 0 closes them at once.
    #[arg(long, value_name = "DURATION", default_value = "1h")]
    pub(super) drain_timeout: DurationFlag,

    #[command(flatten)]
    pub(super) dry_run: DryRunFlag,
}

/// The flag about a kube-proxy that serves this node again.
#[derive(Args, Clone, Copy, Debug)]
pub(super) struct SuccessorFlag {
    /// Whether kube-proxy serves this node again, with the virtual servers that this program made.
    #[arg(long, value_enum, value_name = "WHICH", default_value_t)]
    kube_proxy: SuccessorChoice,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum SuccessorChoice {
    /// Find out. Fails while kube-proxy starts: then try again.
    #[default]
    Auto,
    /// Leave virtual servers and the addresses of kube-ipvs0.
    Serves,
    /// Delete them. Connections to Services break.
    Gone,
}

impl SuccessorFlag {
    /// The choice of a cleanup that has no such flag.
    pub(super) const GONE: Self = Self {
        kube_proxy: SuccessorChoice::Gone,
    };

    /// Returns whether kube-proxy serves. `bare` was opened for routes on `lo`, so that it reports all other
    /// service addresses as leftovers.
    fn has_come(self, bare: &mut Linux, leftovers: &mut LeftoverClient) -> anyhow::Result<bool> {
        match self.kube_proxy {
            SuccessorChoice::Serves => return Ok(true),
            SuccessorChoice::Gone => return Ok(false),
            SuccessorChoice::Auto => {}
        }
        let sign = signs::find(&successor::PORTS);
        match successor::find(&bare.addresses()?, &leftovers.find()?, sign) {
            Successor::Serving => Ok(true),
            Successor::Missing => Ok(false),
            Successor::Coming => {
                let sign = sign.map_or_else(String::new, |sign| format!(" ({sign})"));
                anyhow::bail!(
                    "kube-proxy starts on this node{sign} and does not serve all addresses yet, so removing our \
                     virtual servers would cut connections; try again when its addresses are on kube-ipvs0, or \
                     pass --kube-proxy=gone"
                )
            }
        }
    }
}

/// The flag that makes a cleanup print only.
#[derive(Args, Clone, Copy, Debug)]
pub(super) struct DryRunFlag {
    /// Print what a cleanup would remove, one object a line, and remove nothing.
    #[arg(long)]
    pub(super) dry_run: bool,
}

/// Whose objects a cleanup removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CleanupScope {
    /// The objects of this program.
    Ours,
    /// The objects of this program and of kube-proxy.
    OursAndKubeProxys,
}

impl Flags {
    pub(super) fn run(self, scope: CleanupScope) -> anyhow::Result<ExitCode> {
        let has_ipvs = match Linux::open(ServiceAddresses::Loopback) {
            Ok(_) => true,
            Err(failure) if self.state.shows_ipvs()? => return Err(failure.into()),
            // Then only the dataplane nftables can have left anything.
            Err(_) => false,
        };
        anyhow::ensure!(
            has_ipvs || scope == CleanupScope::Ours,
            "the kernel has no IPVS: remove what kube-proxy left by `kube-proxy --cleanup`, and what this program left by \
             `ipvs-proxier cleanup`"
        );
        if !has_ipvs && !host::has_nfnetlink()? {
            tracing::info!(
                "the kernel has neither IPVS nor netfilter's netlink, so nothing of ours is in it"
            );
            return Ok(ExitCode::SUCCESS);
        }
        if self.dry_run.dry_run {
            if has_ipvs {
                return Cleanup::open(&self, scope)?.preview();
            }
            print(&our_tables()?.join("\n"))?;
            return Ok(ExitCode::SUCCESS);
        }
        let lock = self.state.lock()?;
        let _namespace = NamespaceLock::acquire()?;
        if has_ipvs {
            return Cleanup::open(&self, scope)?.remove(lock);
        }
        remove_maps()?;
        OtherRules::open()?.remove()?;
        Ok(ExitCode::SUCCESS)
    }
}

/// A cleanup of this machine.
struct Cleanup<'a> {
    flags: &'a Flags,
    scope: CleanupScope,
    proxier: Proxier<Ipvs<Linux>>,
    others: OtherRules,
    leftovers: LeftoverClient,
    /// Whether kube-proxy uses the virtual servers and the carrier again.
    has_successor: bool,
    /// Whether the kernel had rules or addresses of ours when the cleanup began.
    has_traces: bool,
}

impl<'a> Cleanup<'a> {
    /// Opens the kernel.
    fn open(flags: &'a Flags, scope: CleanupScope) -> anyhow::Result<Self> {
        let mut linux = Linux::open(flags.service_addresses.local()?)?;
        let has_traces = linux.rules_generation()?.is_some() || linux.addresses()?.have_ours();
        // With KUBE-MARK-MASQ: after a cleanup, no program maintains the chain for plugins.
        let mut leftovers = LeftoverClient::open(MarkChainUse::KubeProxy)?;
        let mut has_successor = false;
        if scope == CleanupScope::Ours {
            // For this form, each address on the carrier and each of our routes there is a leftover.
            let mut bare = Linux::open(ServiceAddresses::Loopback)?;
            has_successor = flags.successor.has_come(&mut bare, &mut leftovers)?;
            if has_successor {
                linux = bare;
            }
        }
        let config = PlanConfig {
            node_name: "".into(),
            // The only plan that needs no carrier. Addresses of all forms are deleted.
            service_addresses: ServiceAddresses::Loopback,
            drain: Duration::ZERO,
            ..PlanConfig::default()
        };
        let excluded = match has_successor {
            true => EVERYWHERE
                .iter()
                .map(|range| range.parse::<Cidr>())
                .collect::<Result<_, _>>()?,
            false => flags.exclude.ipvs_exclude_cidrs.clone(),
        };
        Ok(Self {
            flags,
            scope,
            proxier: Proxier::new(linux, config, flags.state.file())?.excluding(excluded),
            others: OtherRules::open()?,
            leftovers,
            has_successor,
            has_traces,
        })
    }

    /// Prints what [`Cleanup::remove`] would remove.
    fn preview(mut self) -> anyhow::Result<ExitCode> {
        let mut lines = Vec::new();
        let ops = self.planned()?;
        let (wanted, owned) = (self.proxier.wanted(), self.proxier.ledger().owned());
        let named = ops.iter().map(|op| NamedOp::new(op, wanted, owned));
        lines.extend(named.map(|op| op.to_string()));
        let answers = self.others.answer_path.find()?;
        lines.extend(our_tables()?);
        lines.extend(answers.lines().iter().map(|line| format!("delete {line}")));
        for chain in self.others.foreign_chains.with_rules()? {
            lines.push(format!("delete our accept rule from {chain}"));
        }
        for chain in self.others.mark_chains.with_rules()? {
            lines.push(format!("delete {chain}"));
        }
        let state = &self.flags.state.state_file;
        if state.exists() {
            lines.push(format!("delete file {}", state.display()));
        }
        if self.scope == CleanupScope::OursAndKubeProxys {
            lines.extend(self.preview_kube_proxys(&ops)?);
        }
        lines.push(String::new());
        print(&lines.join("\n"))?;
        Ok(ExitCode::SUCCESS)
    }

    fn remove(mut self, lock: Option<LedgerLock>) -> anyhow::Result<ExitCode> {
        let is_ledger_whole = self.proxier.ledger().is_whole();
        if self.has_successor {
            tracing::info!(
                "kube-proxy serves this node again, so the virtual servers and the addresses of \
                 kube-ipvs0 stay"
            );
        }
        let has_succeeded = match self.has_successor {
            true => self.hand_over()?,
            false => self.remove_ours()?,
        };
        if !has_succeeded {
            return Ok(ExitCode::FAILURE);
        }
        // After all deletions: the ledger is the only record of owned virtual servers, and after a failure a
        // second `cleanup` needs it.
        self.flags.state.file().remove()?;
        // A process that was killed left it.
        let _ = std::fs::remove_file(self.flags.state.socket());
        StandingsFile::remove(&self.flags.state.standings());
        lock.map_or(Ok(()), LedgerLock::remove)?;
        if self.scope == CleanupScope::OursAndKubeProxys {
            return self.remove_kube_proxys();
        }
        if self.has_successor {
            return Ok(ExitCode::SUCCESS);
        }
        // Rules or addresses without a whole ledger are of an earlier process whose ledger was lost or damaged.
        self.name_left(self.has_traces && !is_ledger_whole)
    }

    /// Returns the Ops that remove our virtual servers and addresses.
    fn planned(&mut self) -> anyhow::Result<Vec<Op>> {
        let mut ops = self.proxier.preview(clock::since_boot())?.ops;
        if self.has_successor {
            let is_kube_proxys = |op: &Op| {
                let on_carrier = matches!(op, Op::DeleteLeftover(_, AddressForm::Address));
                on_carrier || *op == Op::DeleteCarrier
            };
            ops.retain(|op| !is_kube_proxys(op));
        }
        Ok(ops)
    }

    /// Removes all objects of ours. Returns whether all Ops succeeded.
    fn remove_ours(&mut self) -> anyhow::Result<bool> {
        // Without input the plan is empty, so a resync deletes every owned object. The drain time has no
        // effect, because a virtual server without a Service is deleted at once.
        let applied = self.proxier.resync(clock::since_boot())?;
        self.report(applied.changes.ops.iter(), &applied.outcomes);
        for failure in applied.failures() {
            tracing::error!("{failure}");
        }
        if applied.failures().next().is_some() {
            return Ok(false);
        }
        // The rules come last: without them, a frontend that still exists would admit clients that it must
        // reject.
        self.remove_rules()?;
        Ok(true)
    }

    /// Applies and reports Ops. Returns whether all succeeded.
    fn apply(&mut self, ops: &[Op]) -> bool {
        let outcomes: Outcomes = self.proxier.kernel().apply(ops).into_iter().collect();
        self.report(ops.iter().copied(), &outcomes);
        for failure in outcomes.failures() {
            tracing::error!("{failure}");
        }
        outcomes.failures().next().is_none()
    }

    /// Logs the Ops that succeeded.
    fn report(&self, ops: impl Iterator<Item = Op>, outcomes: &Outcomes) {
        let (wanted, owned) = (self.proxier.wanted(), self.proxier.ledger().owned());
        for (op, outcome) in ops.zip(outcomes.iter()) {
            if outcome.is_ok() {
                tracing::info!("{}", NamedOp::new(&op, wanted, owned));
            }
        }
    }

    /// Removes our packet rules.
    fn remove_rules(&mut self) -> anyhow::Result<()> {
        remove_maps()?;
        self.proxier.kernel().delete_rules()?;
        self.others.remove()
    }

    /// Names the virtual servers that are left. Returns a failure if some of them may be ours.
    fn name_left(&mut self, may_be_ours: bool) -> anyhow::Result<ExitCode> {
        let mut left = BTreeSet::new();
        let linux = self.proxier.kernel();
        linux.virtual_servers(&mut iter::empty(), &mut |found| _ = left.insert(found.key))?;
        if left.is_empty() {
            return Ok(ExitCode::SUCCESS);
        }
        let mut samples: Vec<String> = left.iter().take(SAMPLES).map(ToString::to_string).collect();
        if left.len() > SAMPLES {
            samples.push("..".to_owned());
        }
        let (count, samples) = (left.len(), samples.join(", "));
        if !may_be_ours {
            tracing::info!("{count} virtual servers of other programs remain ({samples})");
            return Ok(ExitCode::SUCCESS);
        }
        tracing::error!(
            "{} did not exist or lacked records, so the owners of the {count} virtual servers that remain are unknown \
             ({samples}); delete those of Services with ipvsadm",
            self.flags.state.state_file.display(),
        );
        Ok(ExitCode::FAILURE)
    }
}

/// Returns a line for each table of ours.
fn our_tables() -> anyhow::Result<Vec<String>> {
    let names = [filter::TABLE, nftables::TABLE, trace::TABLE];
    let chains = host::list_chains()?;
    let tables: BTreeSet<TableName> = chains.iter().map(|chain| chain.table()).collect();
    let ours = tables.iter().filter(|table| names.contains(&&*table.name));
    Ok(ours.map(|table| format!("delete {table}")).collect())
}

/// Deletes the table of the dataplane nftables.
fn remove_maps() -> anyhow::Result<()> {
    let mut client = RulesClient::open(nftables::TABLE)?;
    if client.exists()? {
        client.delete()?;
        tracing::info!("removed table inet {}", nftables::TABLE);
    }
    Ok(())
}

/// What this program adds to the kernel whichever dataplane serves.
struct OtherRules {
    foreign_chains: ForeignChains,
    mark_chains: MarkChains,
    answer_path: AnswerPath,
}

impl OtherRules {
    fn open() -> anyhow::Result<Self> {
        // Rules are recognised by their comments, so the treatments and the mark are irrelevant.
        let treatments = Treatments {
            forward: Treatment::Warn,
            input: Treatment::Warn,
            mark: 0,
            are_translated: false,
        };
        Ok(Self {
            foreign_chains: ForeignChains::open(treatments)?,
            mark_chains: MarkChains::open(0)?,
            answer_path: AnswerPath::open()?,
        })
    }

    fn remove(&mut self) -> anyhow::Result<()> {
        if trace::remove_left()? {
            tracing::info!("removed table inet {}", trace::TABLE);
        }
        for line in self.answer_path.remove()?.lines() {
            tracing::info!("removed {line}");
        }
        for chain in self.foreign_chains.remove_rules()? {
            tracing::info!("removed our accept rule from {chain}");
        }
        for (chain, removal) in self.mark_chains.remove()? {
            match removal {
                Removal::NotOurs => {}
                Removal::Removed => tracing::info!("removed {chain}"),
                Removal::InUse => tracing::warn!(
                    "{chain} stays: a rule of another program jumps to it; it sets the masquerade bit, \
                     and no rule of this program masquerades any more"
                ),
            }
        }
        Ok(())
    }
}
