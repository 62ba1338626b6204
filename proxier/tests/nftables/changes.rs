//! Single changes of our rules, and the commands that make them.

use std::collections::BTreeMap;

use nftables::RulesClient;
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use proxier::testing::filter::{FilterConfig, MarkBit, TABLE};
use proxier::testing::frontend::Frontend;
use proxier::testing::model::{Family, TrafficPolicy};
use proxier::testing::plan::{Availability, Scope};

use super::rules::{Admission, Rules, admission, frontend, inside, node, ranges};
use crate::{assert_same, lines, list};

#[test]
fn changes_in_nft_syntax() {
    let mut rules = Rules::new(FilterConfig::default(), None);
    let web = frontend("tcp 198.51.100.12:80");
    let mut text = String::new();
    let mut write_changes = |rules: &mut Rules, what: &str| {
        text += &format!("# {what}\n");
        for change in rules.take_commands() {
            text += &format!("{}\n", change.in_table(TABLE));
        }
    };
    let open = admission(Scope::External, TrafficPolicy::Cluster);
    let ranged = |list: &[&str]| Admission {
        source_ranges: ranges(Family::V4, list),
        ..open.clone()
    };
    let local = Admission {
        policy: TrafficPolicy::Local,
        endpoints: Availability::RemoteOnly,
        inside: Some(inside(7, &[])),
        ..open.clone()
    };
    rules.set_frontend(web, Some(open.clone()));
    write_changes(&mut rules, "a load-balancer address is added");
    rules.set_frontend(web, Some(ranged(&["10.0.0.0/8"])));
    write_changes(&mut rules, "it gets source ranges");
    rules.set_frontend(web, Some(ranged(&["10.0.0.0/8", "192.0.2.0/24"])));
    write_changes(&mut rules, "the source ranges change");
    rules.set_frontend(web, Some(ranged(&["10.0.0.0/8", "192.0.2.0/24"])));
    write_changes(&mut rules, "the source ranges stay the same");
    rules.set_frontend(web, Some(local));
    write_changes(
        &mut rules,
        "its policy becomes Local, without an endpoint on this node",
    );
    rules.set_frontend(web, None);
    write_changes(&mut rules, "it is removed");
    rules.release();
    write_changes(&mut rules, "its guard is released");
    rules.set_address("10.96.0.1".parse().unwrap(), true);
    rules.add_local_endpoint("fd00::1".parse().unwrap());
    rules.add_health_check(31_999);
    write_changes(
        &mut rules,
        "addresses, endpoints and a health-check port are added",
    );
    insta::with_settings!({ omit_expression => true, prepend_module_to_snapshot => false,
        snapshot_path => "." }, {
        insta::assert_snapshot!("changes", text);
    });
}

/// Returns an admission out of few, so that frontends often share sets and chains.
fn any_admission() -> impl Strategy<Value = Option<Admission>> {
    let scope = prop_oneof![
        Just(Scope::Internal),
        Just(Scope::External),
        Just(Scope::NodePort)
    ];
    let policy = prop_oneof![Just(TrafficPolicy::Cluster), Just(TrafficPolicy::Local)];
    let endpoints = prop_oneof![
        Just(Availability::Usable),
        Just(Availability::RemoteOnly),
        Just(Availability::None)
    ];
    let source_ranges = proptest::option::of(prop_oneof![
        Just(vec!["10.0.0.0/8"]),
        Just(vec!["10.0.0.0/8", "172.18.0.0/16"]),
        Just(vec![]),
    ]);
    let frontend = (
        scope,
        policy,
        endpoints,
        source_ranges,
        proptest::option::of((
            1..3_u32,
            prop_oneof![Just(&[][..]), Just(&["10.244.1.2"][..])],
        )),
    );
    let any = frontend.prop_map(|(scope, policy, endpoints, list, marked)| Admission {
        scope,
        policy,
        endpoints,
        source_ranges: list.and_then(|list| ranges(Family::V4, &list)),
        inside: marked.map(|(mark, here)| inside(mark, here)),
    });
    // The admission of most frontends.
    let most = Just(admission(Scope::Internal, TrafficPolicy::Cluster));
    proptest::option::of(prop_oneof![1 => most, 2 => any])
}

/// Returns a configuration whose tables have all optional parts.
fn config() -> FilterConfig {
    FilterConfig {
        answer_ping: true,
        input_accept_bit: Some(MarkBit::INPUT_ACCEPT),
        hides_arp: true,
        ..FilterConfig::default()
    }
}

/// Returns steps. Each sets or removes some of the frontends of [`nth_frontend`].
fn steps() -> impl Strategy<Value = Vec<Vec<(u8, Option<Admission>)>>> {
    let step = proptest::collection::vec((0..4_u8, any_admission()), 1..4);
    proptest::collection::vec(step, 1..8)
}

/// Returns one of four frontends, which share addresses and ports.
fn nth_frontend(nth: u8) -> Frontend {
    frontend(
        [
            "tcp 10.0.0.1:80",
            "tcp 10.0.0.1:81",
            "udp 10.0.0.1:80",
            "tcp 10.0.0.2:80",
        ][usize::from(nth)],
    )
}

/// Makes exactly the addresses of these frontends service addresses.
fn follow_addresses(rules: &mut Rules, frontends: &BTreeMap<Frontend, Admission>) {
    for address in ["10.0.0.1", "10.0.0.2"] {
        let address = address.parse().unwrap();
        let is_local = frontends.keys().any(|it| it.address == address);
        rules.set_address(address, is_local);
    }
}

/// Returns new rules with these frontends.
fn from_scratch(frontends: &BTreeMap<Frontend, Admission>) -> Rules {
    let mut rules = Rules::new(config(), Some(node()));
    for (&frontend, admission) in frontends {
        rules.set_frontend(frontend, Some(admission.clone()));
    }
    follow_addresses(&mut rules, frontends);
    rules
}

proptest! {
    /// The commands lead from the table before each step to the table after it.
    #[test]
    fn the_table_depends_on_present_frontends_only(steps in steps()) {
        let mut rules = Rules::new(config(), Some(node()));
        let mut applied = rules.table();
        let mut frontends = BTreeMap::new();
        for step in steps {
            for (nth, admission) in step {
                let frontend = nth_frontend(nth);
                rules.set_frontend(frontend, admission.clone());
                match admission {
                    Some(admission) => frontends.insert(frontend, admission),
                    None => frontends.remove(&frontend),
                };
            }
            follow_addresses(&mut rules, &frontends);
            rules.release();
            prop_assert_eq!(rules.table(), from_scratch(&frontends).table());
            for change in rules.take_commands() {
                applied.apply(&change);
            }
            prop_assert_eq!(rules.table(), applied.clone());
            prop_assert_eq!(rules.take_commands(), []);
        }
    }
}

/// The kernel's table after all commands is the same as after a replacement.
#[test]
fn the_kernel_accepts_incremental_changes() {
    lab::test(|| {
        let mut runner = TestRunner::deterministic();
        let mut client = RulesClient::open(TABLE).unwrap();
        for _ in 0..20 {
            let mut rules = Rules::new(config(), Some(node()));
            let mut frontends = BTreeMap::new();
            client.replace(&rules.table()).unwrap();
            for step in steps().new_tree(&mut runner).unwrap().current() {
                for (nth, admission) in step {
                    let frontend = nth_frontend(nth);
                    match &admission {
                        Some(admission) => frontends.insert(frontend, admission.clone()),
                        None => frontends.remove(&frontend),
                    };
                    rules.set_frontend(frontend, admission);
                }
                follow_addresses(&mut rules, &frontends);
                rules.release();
                client.apply(&rules.take_commands()).unwrap();
            }
            assert_same(
                &blocks(&list()),
                &blocks(&rules.table().named(TABLE).to_string()),
            );
        }
    });
}

/// Returns the sets and chains of a table. They are sorted, because the kernel lists chains by age.
fn blocks(text: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    for table in text.split("\ntable ") {
        let inner = table.trim_end().trim_end_matches('}');
        let (head, inner) = inner.split_once('\n').unwrap();
        let parts = inner.trim_end().split("\n\n");
        blocks.extend(parts.map(|it| format!("{head} {}", lines(it).join("\n"))));
    }
    blocks.sort();
    blocks
}
