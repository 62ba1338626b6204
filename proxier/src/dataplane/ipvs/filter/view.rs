//! What packet rules follow from: the plan now, or as it was before its last changes.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipvs_netlink as ipvs;

use super::guards::Guards;
use crate::dataplane::ipvs::{MarkChanges, Wanted};
use crate::dataplane::packet_rules::PlanView;
use crate::plan::frontend::Frontend;
use crate::plan::{Access, Changed, Desired, SelectedEndpoint};

/// The plan, as far as packet rules depend on it.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    wanted: Wanted<'a>,
    pub(super) plan: PlanView<'a>,
    /// The changes of marks before which it is viewed.
    undone: Option<&'a MarkChanges>,
}

/// The clients that may use a frontend, and the treatment of their packets.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Admission<'a> {
    pub(super) access: &'a Access,
    /// The firewall mark by which clients inside the cluster reach the endpoints of all nodes; `None` if all clients
    /// reach the same endpoints.
    pub(super) mark: Option<u32>,
    /// With a mark, those endpoints that are on this node. Their answers return through this node, whoever the
    /// client is.
    pub(super) here: &'a [SelectedEndpoint],
}

impl<'a> View<'a> {
    /// Returns the plan as it is.
    pub(super) fn now(wanted: Wanted<'a>) -> Self {
        let (plan, undone) = (PlanView::now(wanted.desired()), None);
        Self {
            wanted,
            plan,
            undone,
        }
    }

    /// Returns the plan as it was before its last changes, which are `changed` and `marks`.
    pub(super) fn before(wanted: Wanted<'a>, changed: &'a Changed, marks: &'a MarkChanges) -> Self {
        let plan = PlanView::before(wanted.desired(), changed);
        let undone = Some(marks);
        Self {
            wanted,
            plan,
            undone,
        }
    }

    /// Returns the admission of a frontend; `None` if it is not desired.
    pub(super) fn admission(self, frontend: &Frontend) -> Option<Admission<'a>> {
        let plan = self.plan.frontend(frontend)?;
        let marks = self.undone.map(|marks| &marks.frontends);
        let key = match marks.and_then(|marks| marks.get(frontend)) {
            Some(earlier) => *earlier,
            None => self.wanted.inside(frontend),
        };
        let access = &plan.profile.access;
        Some(match key {
            // With policy Local, the endpoints for clients outside are those of this node.
            Some(ipvs::ServiceKey::Mark { mark, .. }) => Admission {
                access,
                mark: Some(mark),
                here: &plan.endpoints,
            },
            _ => Admission {
                access,
                mark: None,
                here: &[],
            },
        })
    }

    /// Returns the admissions of the frontends at `address`, some of them twice.
    pub(super) fn admissions_at(self, address: IpAddr) -> impl Iterator<Item = Admission<'a>> {
        let frontends = self.plan.frontends_at(address);
        frontends.filter_map(move |frontend| self.admission(frontend))
    }
}

/// Objects that have rules, or had some.
#[derive(Debug, Default)]
pub(super) struct Subjects {
    pub(super) frontends: Vec<Frontend>,
    /// Service addresses, and addresses of frontends.
    pub(super) addresses: BTreeSet<IpAddr>,
    pub(super) local_endpoints: Vec<IpAddr>,
    pub(super) health_checks: Vec<u16>,
    /// Whether the service ranges are among them.
    pub(super) service_ranges: bool,
}

impl Subjects {
    /// Returns all objects of the plan, and those with guards.
    pub(super) fn all(desired: &Desired, guards: &Guards) -> Self {
        let guarded = guards.frontends.keys();
        let frontends = desired.frontends.keys().chain(guarded).copied();
        let frontends: Vec<Frontend> = frontends.filter(has_rules).collect();
        let of_frontends = frontends.iter().map(|frontend| &frontend.address);
        let addresses = desired.addresses.keys().chain(&guards.addresses);
        Self {
            addresses: addresses.chain(of_frontends).copied().collect(),
            frontends,
            local_endpoints: desired.local_endpoints.iter().copied().collect(),
            health_checks: desired.health_checks.keys().copied().collect(),
            service_ranges: true,
        }
    }

    /// Returns the objects whose rules may differ before and after these changes.
    pub(super) fn of(
        [then, now]: [View<'_>; 2],
        changed: &Changed,
        changed_marks: &MarkChanges,
    ) -> Self {
        // The source of the others changed, which no rule has.
        let addresses = changed.addresses.iter().copied();
        let addresses =
            addresses.filter(|&it| then.plan.has_address(it) != now.plan.has_address(it));
        let mut subjects = Self {
            addresses: addresses.collect(),
            local_endpoints: changed.local_endpoints.iter().copied().collect(),
            health_checks: changed.health_checks.iter().copied().collect(),
            service_ranges: changed.service_ranges,
            ..Self::default()
        };
        let mut marks = BTreeSet::new();
        let marked = changed_marks.frontends.keys();
        for frontend in changed.frontends.iter().chain(marked).copied() {
            let admissions = [then, now].map(|view| view.admission(&frontend));
            if has_rules(&frontend) && admissions[0] != admissions[1] {
                subjects.frontends.push(frontend);
                subjects.addresses.insert(frontend.address);
                marks.extend(admissions.iter().flatten().filter_map(|it| it.mark));
            }
        }
        // The frontends of a mark share its rules, which stay if any of them keeps the mark.
        for mark in marks {
            let users = now.wanted.marks().users(mark).copied();
            subjects.frontends.extend(users.filter(has_rules));
        }
        subjects
    }

    /// Returns these frontends and addresses, and the addresses of the frontends.
    pub(super) fn at(frontends: &[Frontend], addresses: &[IpAddr]) -> Self {
        let of_frontends = frontends.iter().map(|frontend| &frontend.address);
        Self {
            addresses: of_frontends.chain(addresses).copied().collect(),
            frontends: frontends.to_vec(),
            ..Self::default()
        }
    }
}

/// Returns whether the frontend has packet rules.
///
/// A frontend at a loopback address has none: a relay serves it, and decides itself which clients may
/// connect.
pub(super) fn has_rules(frontend: &Frontend) -> bool {
    !frontend.needs_relay()
}
