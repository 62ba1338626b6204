use std::collections::BTreeMap;
use std::net::SocketAddr;

use proptest::collection::vec;
use proptest::prelude::*;

use nftables::{Statement, Verdict};

use super::super::{names, slots};
use super::*;
use crate::cluster::model::Protocol;
use crate::cluster::model::{Cidr, Family, Networks, TrafficPolicy};
use crate::plan::{Availability, InsidePlan, Profile, Scope, SelectedEndpoint, example};

mod clients;

const FRONTEND_ADDRESSES: [&str; 2] = ["10.96.0.1", "fd00:10:96::1"];

/// Returns one of four frontends.
fn frontend(index: usize) -> Frontend {
    Frontend {
        address: FRONTEND_ADDRESSES[index % 2].parse().unwrap(),
        protocol: Protocol::Tcp,
        port: if index < 2 { 80 } else { 443 },
    }
}

/// Returns the endpoint with this number and weight, in the family of `frontend`.
fn endpoint(frontend: &Frontend, number: u8, weight: u16) -> SelectedEndpoint {
    let address = match frontend.family() {
        Family::V4 => IpAddr::from([10, 244, 0, number]),
        Family::V6 => IpAddr::from([0xfd00, 0x244, 0, 0, 0, 0, 0, number.into()]),
    };
    SelectedEndpoint {
        address,
        port: 8080,
        weight,
        most_connections: 0,
    }
}

/// A plan of a frontend as numbers.
#[derive(Clone, Debug)]
struct Draft {
    scheduler: &'static str,
    /// Weights by the number of the endpoint; `None` is no endpoint.
    weights: Vec<Option<u16>>,
    /// The endpoints with smaller numbers are on this node, if clients inside and outside reach others.
    split: Option<u8>,
    affinity_secs: Option<u32>,
    scope: Scope,
    has_ranges: bool,
}

impl Draft {
    fn plan(&self, frontend: &Frontend) -> FrontendPlan {
        let mut plan = example::cluster_ip(&[]);
        let mut all = Vec::new();
        for (number, weight) in (0..).zip(&self.weights) {
            all.extend(weight.map(|weight| endpoint(frontend, number, weight)));
        }
        let mut profile = Profile::clone(&plan.profile);
        profile.balancing.scheduler = self.scheduler.into();
        profile.balancing.affinity_secs = self.affinity_secs;
        profile.access.scope = self.scope;
        let family = frontend.family();
        let range = ["203.0.113.0/24", "2001:db8::/32"].map(|text| text.parse::<Cidr>());
        let ranges = Networks::new(family, range.into_iter().flatten());
        profile.access.source_ranges = self.has_ranges.then_some(ranges);
        let serves = |endpoints: &[SelectedEndpoint]| endpoints.iter().any(|it| it.weight > 0);
        let mut own = all.clone();
        if let Some(here) = self.split {
            own.truncate(here.into());
            profile.access.policy = TrafficPolicy::Local;
            plan.inside = Some(Box::new(InsidePlan {
                balancing: profile.balancing.clone(),
                endpoints: all.clone().into(),
            }));
        }
        profile.access.endpoints = match (serves(&own), serves(&all)) {
            (true, _) => Availability::Usable,
            (false, true) => Availability::RemoteOnly,
            (false, false) => Availability::None,
        };
        plan.profile = Arc::new(profile);
        plan.endpoints = own.into();
        plan
    }
}

fn draft() -> impl Strategy<Value = Draft> {
    let scheduler = prop::sample::select(vec!["rr", "wrr", "sh", "mh", "dh", "fo", "lc", "wlc"]);
    let scope = prop::sample::select(vec![Scope::Internal, Scope::External, Scope::NodePort]);
    let weight = prop::option::weighted(0.7, prop::sample::select(vec![0, 1, 1, 1, 2, 3]));
    (
        scheduler,
        vec(weight, 0..6),
        prop::option::weighted(0.3, 0..6_u8),
        prop::option::weighted(0.3, prop::sample::select(vec![60, 10_800])),
        scope,
        any::<bool>(),
    )
        .prop_map(
            |(scheduler, weights, split, affinity_secs, scope, has_ranges)| Draft {
                scheduler,
                weights,
                split: split.filter(|_| scope != Scope::Internal),
                affinity_secs,
                scope,
                has_ranges,
            },
        )
}

/// A kernel's table, which refuses what the kernel refuses.
struct Kernel(Table);

impl Kernel {
    fn apply(&mut self, commands: &[Command]) {
        for command in commands {
            let set = |name: &Arc<str>| &self.0.sets[name];
            match command {
                Command::AddElement(name, element) => {
                    assert!(!set(name).contains(&element.key), "{command:?}");
                    if let Some(Verdict::Goto(chain) | Verdict::Jump(chain)) = &element.verdict {
                        assert!(self.0.chains.contains_key(chain), "{command:?}");
                    }
                }
                Command::AddTarget(name, key, _) => {
                    assert!(!set(name).contains(key), "{command:?}");
                }
                Command::DeleteElement(name, key) => {
                    assert!(set(name).contains(key), "{command:?}");
                }
                Command::AddChain(name, _) => {
                    assert!(!self.0.chains.contains_key(name), "{command:?}");
                }
                Command::AddRule(_, rule) => {
                    for statement in rule.statements() {
                        if let Statement::Verdict(Verdict::Goto(chain)) = statement {
                            assert!(self.0.chains.contains_key(chain), "{command:?}");
                        }
                    }
                }
                _ => {}
            }
            self.0.apply(command);
        }
    }
}

/// Fewer frontends are counted than there are, so that histories cross the limit.
fn config() -> FilterConfig {
    FilterConfig {
        most_counted: 2,
        ..FilterConfig::default()
    }
}

/// Returns the table without the slots and counters, and the slots of each frontend; those that are drawn at random in order.
fn parts_of(table: &Table, desired: &Desired) -> (Table, BTreeMap<Frontend, [Vec<SocketAddr>; 2]>) {
    let mut rest = table.clone();
    let mut slots = BTreeMap::new();
    for index in 0..4 {
        let frontend = frontend(index);
        let present = Present::of(table, &frontend);
        let mut lists = [present.first, present.outside];
        let plan = desired.frontends.get(&frontend);
        let scheduler = plan.map_or("", |plan| &plan.profile.balancing.scheduler);
        if !["sh", "mh"].contains(&scheduler) {
            lists.iter_mut().for_each(|list| list.sort());
        }
        slots.insert(frontend, lists);
        for name in [names::ENDPOINTS, COUNTED] {
            let without = rest.sets[name.of(frontend.family())].without_elements();
            rest.add_set(without);
        }
    }
    (rest, slots)
}

/// Returns the frontends whose connections the table counts.
fn counted(table: &Table) -> Vec<Frontend> {
    let is_counted = |frontend: &Frontend| {
        let set = &table.sets[COUNTED.of(frontend.family())];
        set.contains(&key_of(frontend))
    };
    (0..4).map(frontend).filter(is_counted).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn a_followed_plan_gives_the_table_from_scratch(
        history in vec((0..4_usize, prop::option::weighted(0.8, draft())), 1..12),
    ) {
        let mut rules = ServiceTable::new(&config(), None);
        let mut desired = Desired::default();
        let mut kernel = Kernel(rules.table(&desired));
        for (index, draft) in history {
            let frontend = frontend(index);
            let address = frontend.address;
            let before = desired.clone();
            match draft {
                Some(draft) => drop(desired.frontends.insert(frontend, draft.plan(&frontend))),
                None => drop(desired.frontends.remove(&frontend)),
            }
            if desired.frontends.keys().any(|it| it.address == address) {
                desired.addresses.insert(address, None);
            } else {
                desired.addresses.remove(&address);
            }
            let were_counted = counted(&kernel.0);
            rules.follow(&desired, &changed(before, [frontend]));
            kernel.apply(&rules.take_commands());
            prop_assert_eq!(&kernel.0, &rules.table(&desired));
            // No other frontend takes its counter from one that stays.
            let stay = |it: &Frontend| desired.frontends.contains_key(it);
            prop_assert!(were_counted.into_iter().filter(stay).all(|it| rules.counts(&it)));
            clients::assert_served(&kernel.0, &desired);
            // A plan that is followed already changes nothing.
            rules.follow(&desired, &changed(desired.clone(), [frontend]));
            prop_assert_eq!(rules.take_commands(), []);
        }
        kernel.apply(&rules.sweep());
        prop_assert_eq!(&kernel.0, &rules.table(&desired));
        let scratch = table(&desired, &config(), None);
        prop_assert_eq!(counted(&kernel.0).len(), desired.frontends.len().min(2));
        prop_assert_eq!(counted(&scratch).len(), desired.frontends.len().min(2));
        prop_assert_eq!(parts_of(&kernel.0, &desired), parts_of(&scratch, &desired));
        // A new process finds the order of slots again.
        let again = ServiceTable::like(&kernel.0, &desired, &config(), None);
        prop_assert_eq!(again.table(&desired), kernel.0);
        let mut pieced = Kernel(rules.frame());
        rules.pieces(&desired).for_each(|piece| pieced.apply(&piece));
        prop_assert_eq!(pieced.0, rules.table(&desired));
    }

    #[test]
    fn changes_of_several_plans_are_taken_together(
        history in vec((0..4_usize, prop::option::weighted(0.8, draft())), 1..6),
    ) {
        let mut rules = ServiceTable::new(&config(), None);
        let mut desired = Desired::default();
        let mut kernel = Kernel(rules.table(&desired));
        for (index, draft) in history {
            let frontend = frontend(index);
            let before = desired.clone();
            match draft {
                Some(draft) => drop(desired.frontends.insert(frontend, draft.plan(&frontend))),
                None => drop(desired.frontends.remove(&frontend)),
            }
            rules.follow(&desired, &changed(before, [frontend]));
        }
        kernel.apply(&rules.take_commands());
        prop_assert_eq!(&kernel.0, &rules.table(&desired));
    }
}

/// Returns the changes of these frontends and their addresses since `before`.
fn changed<const N: usize>(before: Desired, frontends: [Frontend; N]) -> Changed {
    Changed {
        frontends: frontends.into(),
        addresses: frontends.map(|frontend| frontend.address).into(),
        before,
        ..Changed::default()
    }
}

/// Returns the commands of a change of a frontend's weights by `change`.
fn commands(
    scheduler: &'static str,
    before: &[Option<u16>],
    after: &[Option<u16>],
) -> Vec<Command> {
    let mut rules = ServiceTable::new(&config(), None);
    let mut desired = Desired::default();
    let frontend = frontend(0);
    let mut follow = |weights: &[Option<u16>]| {
        let draft = Draft {
            scheduler,
            weights: weights.to_vec(),
            split: None,
            affinity_secs: None,
            scope: Scope::Internal,
            has_ranges: false,
        };
        let plan = draft.plan(&frontend);
        let before = std::mem::take(&mut desired);
        desired.frontends.insert(frontend, plan);
        rules.follow(&desired, &changed(before, [frontend]));
        rules.take_commands()
    };
    follow(before);
    follow(after)
}

#[test]
fn one_endpoint_is_a_handful_of_elements_and_no_chain() {
    let all: Vec<Option<u16>> = vec![Some(1); 10];
    for number in [0, 4, 9] {
        let mut fewer = all.clone();
        fewer[number] = None;
        let removed = commands("rr", &all, &fewer);
        let added = commands("rr", &fewer, &all);
        for commands in [&removed, &added] {
            let is_element = |it: &Command| {
                matches!(
                    it,
                    Command::AddElement(..) | Command::AddTarget(..) | Command::DeleteElement(..)
                )
            };
            assert!(commands.iter().all(is_element), "{commands:?}");
        }
        assert!(removed.len() <= 5, "{removed:?}");
        assert_eq!(added.len(), 3, "{added:?}");
        let mut replaced = vec![Some(1); 11];
        replaced[number] = None;
        let mut before = all.clone();
        before.push(None);
        assert_eq!(commands("rr", &before, &replaced).len(), 2);
    }
}

#[test]
fn with_mh_an_endpoint_moves_about_its_share_of_the_clients() {
    let all: Vec<Option<u16>> = vec![Some(1); 10];
    let changed = commands("mh", &all, &all[..9]);
    // Each moved row is deleted and added. 25 of 251 rows are the endpoint's own.
    let rows = changed.len() / 2;
    assert!((25..60).contains(&rows), "{rows}");
}

#[test]
fn slots_follow_the_scheduler() {
    let frontend = frontend(0);
    let slots = |scheduler: &str, weights: &[u16]| {
        let endpoints = (1..).zip(weights);
        let endpoints: Vec<SelectedEndpoint> = endpoints
            .map(|(number, weight)| endpoint(&frontend, number, *weight))
            .collect();
        let mut balancing = example::cluster_ip(&[]).profile.balancing.clone();
        balancing.scheduler = scheduler.into();
        let slots = slots::Slots::of(&frontend, &endpoints, &balancing, 1_024);
        let number = |endpoint: &SocketAddr| match endpoint.ip() {
            IpAddr::V4(address) => address.octets()[3],
            IpAddr::V6(_) => 0,
        };
        let numbers: Vec<u8> = slots.endpoints.iter().map(number).collect();
        numbers
    };
    assert_eq!(slots("rr", &[1, 5, 0]), [1, 2]);
    assert_eq!(slots("wrr", &[2, 4, 6]), [1, 2, 2, 3, 3, 3]);
    assert_eq!(slots("wlc", &[10, 0, 20]), [1, 3, 3]);
    assert_eq!(slots("sh", &[1, 2]), [1, 2, 2]);
    assert_eq!(slots("fo", &[1, 3, 3]), [2]);
    assert_eq!(slots("dh", &[1, 1, 1]).len(), 1);
    assert_eq!(slots("mh", &[1, 1]).len(), 251);
    for scheduler in ["rr", "wrr", "sh", "mh", "dh", "fo"] {
        assert!(slots(scheduler, &[0, 0]).is_empty(), "{scheduler}");
    }
    // Weights without a common divisor are rounded to 1,024 slots.
    let rounded = slots("wrr", &[65_535, 32_768, 1]);
    let count = |number| rounded.iter().filter(|it| **it == number).count();
    assert_eq!([count(1), count(2), count(3)], [682, 341, 1]);
}

#[test]
fn the_slots_of_a_service_have_a_limit() {
    let frontend = frontend(0);
    let count = |scheduler: &str, weights: &[u16], siblings: usize| {
        let mut plan = example::cluster_ip(&[]);
        let profile = Arc::make_mut(&mut plan.profile);
        profile.siblings = siblings;
        profile.balancing.scheduler = scheduler.into();
        let endpoints = (1..).zip(weights);
        let endpoints: Vec<SelectedEndpoint> = endpoints
            .map(|(number, weight)| endpoint(&frontend, number, *weight))
            .collect();
        let budget = slots::budget(&plan);
        let balancing = &plan.profile.balancing;
        let slots = slots::Slots::of(&frontend, &endpoints, balancing, budget);
        let is_rounded = slots::are_rounded(&endpoints, balancing, budget);
        (slots.endpoints.len(), is_rounded)
    };
    assert_eq!(count("wrr", &[1, 1_023], 16), (1_024, false));
    assert_eq!(count("wrr", &[1, 1_023], 32), (512, true));
    // 1,000 ports and 4 addresses.
    assert_eq!(count("wrr", &[1, 1_023], 4_096), (4, true));
    assert_eq!(count("wrr", &[1, 1_023], 65_536), (2, true));
    assert_eq!(count("wrr", &[1; 10], 65_536), (10, false));
    assert_eq!(count("mh", &[1; 10], 64), (251, false));
    assert_eq!(count("mh", &[1; 10], 128), (10, false));
}
