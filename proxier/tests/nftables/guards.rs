//! Guards, and addresses that are hidden from ARP.

use std::net::IpAddr;

use nftables::hash;
use nftables::{Command, Key};
use proxier::testing::dataplane::ipvs::{InsideMarks, Wanted};
use proxier::testing::filter::{Content, Filter, FilterConfig};
use proxier::testing::frontend::Frontend;
use proxier::testing::model::{Family, Protocol, TrafficPolicy};
use proxier::testing::observed::Observed;
use proxier::testing::plan::{Availability, Desired, Scope};

use super::rules::{self, Admission, Rules, ranges};

const FRONTEND: Frontend = Frontend {
    address: ADDRESS,
    protocol: Protocol::Udp,
    port: 53,
};

const ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(198, 51, 100, 5));

fn admission(list: Option<&str>, endpoints: Availability) -> Admission {
    Admission {
        endpoints,
        source_ranges: list.and_then(|text| ranges(Family::V4, &[text])),
        ..rules::admission(Scope::External, TrafficPolicy::Cluster)
    }
}

fn ranged() -> Admission {
    admission(Some("203.0.113.0/24"), Availability::Usable)
}

fn open() -> Admission {
    admission(None, Availability::Usable)
}

/// Returns rules with one frontend, which the kernel has.
fn with(admission: Admission) -> Rules {
    let mut rules = Rules::new(FilterConfig::default(), None);
    rules.set_frontend(FRONTEND, Some(admission));
    rules.set_address(ADDRESS, true);
    rules.take_commands();
    rules
}

fn commands(rules: &mut Rules) -> Vec<String> {
    let commands = rules.take_commands();
    let text = |command: &Command| command.in_table("t").to_string();
    commands.iter().map(text).collect()
}

/// Guards the frontend and its address as stale ones.
fn guard(rules: &mut Rules) {
    let (wanted, filter) = rules.parts();
    filter.guard(wanted, [FRONTEND], [ADDRESS]);
}

/// Returns a kernel with the virtual server of [`FRONTEND`], which has no destination.
fn with_server() -> Observed {
    let mut observed = Observed::default();
    let key = FRONTEND.into();
    observed.virtual_servers.insert(key, rules::server(key));
    observed
}

const REMOVE_FRONTEND: &str = "delete element inet t frontends-4 { 198.51.100.5 . udp . 53 }";
const REMOVE_SHIELD: &str = "delete element inet t external-4 { 198.51.100.5 . udp . 53 }";
const REMOVE_GUARD: &str = "delete element inet t guarded-4 { 198.51.100.5 . udp . 53 }";
const REMOVE_PING: &str = "delete element inet t pingable-4 { 198.51.100.5 }";
const REMOVE_ADDRESS: &str = "delete element inet t service-addresses-4 { 198.51.100.5 }";

#[test]
fn a_guard_is_removed_when_it_is_released() {
    let mut rules = with(ranged());
    rules.set_frontend(FRONTEND, None);
    rules.set_address(ADDRESS, false);
    assert_eq!(
        commands(&mut rules),
        [REMOVE_SHIELD, REMOVE_FRONTEND, REMOVE_PING]
    );
    let mut kernel = with_server();
    kernel.addresses.insert(ADDRESS, None);
    assert!(!rules.release_on(&kernel));
    assert_eq!(commands(&mut rules), [""; 0]);
    kernel.addresses.clear();
    assert!(rules.release_on(&kernel));
    assert_eq!(commands(&mut rules), [REMOVE_ADDRESS]);
    assert!(rules.release());
    let chain = "ranges-udp-198.51.100.5-53";
    let gone = [
        format!("flush chain inet t {chain}"),
        REMOVE_GUARD.to_owned(),
        format!("delete chain inet t {chain}"),
    ];
    assert_eq!(commands(&mut rules), gone);
    assert!(!rules.release());
    let mut nothing = Rules::new(FilterConfig::default(), None);
    assert_eq!(rules.table(), nothing.table());
}

#[test]
fn a_frontend_that_returns_keeps_its_guard_if_it_needs_one() {
    for (scenario, again, is_released) in [
        ("source ranges", ranged(), false),
        ("no endpoints", admission(None, Availability::None), false),
        ("neither", open(), true),
    ] {
        let mut rules = with(ranged());
        rules.set_frontend(FRONTEND, None);
        rules.set_address(ADDRESS, false);
        rules.set_frontend(FRONTEND, Some(again.clone()));
        rules.set_address(ADDRESS, true);
        assert_eq!(rules.release(), is_released, "{scenario}");
        assert_eq!(rules.table(), with(again).table(), "{scenario}");
    }
}

#[test]
fn a_frontend_that_gets_endpoints_keeps_its_guard_until_release() {
    let mut rules = with(admission(None, Availability::None));
    rules.set_frontend(FRONTEND, Some(open()));
    let ping = "add element inet t pingable-4 { 198.51.100.5 }";
    assert_eq!(commands(&mut rules), [ping]);
    assert!(!rules.release_on(&Observed::default()));
    assert!(!rules.release_on(&with_server()));
    assert!(rules.release());
    assert_eq!(commands(&mut rules), [REMOVE_GUARD]);
}

#[test]
fn a_stale_frontend_is_rejected_until_it_is_released() {
    let mut rules = Rules::new(FilterConfig::default(), None);
    let nothing = rules.table();
    guard(&mut rules);
    guard(&mut rules);
    let chain = "ranges-udp-198.51.100.5-53";
    let guarded = [
        format!("add chain inet t {chain}"),
        format!("add element inet t guarded-4 {{ 198.51.100.5 . udp . 53 : jump {chain} }}"),
        "add element inet t service-addresses-4 { 198.51.100.5 }".to_owned(),
        format!("add rule inet t {chain} goto refuse"),
    ];
    assert_eq!(commands(&mut rules), guarded);
    assert!(rules.release());
    assert_eq!(rules.table(), nothing);
    // A desired frontend has only the guard that its admission needs, here none.
    let mut rules = with(open());
    guard(&mut rules);
    assert_eq!(commands(&mut rules), [""; 0]);
    assert!(!rules.release());
}

#[test]
fn commands_are_made_only_if_the_kernel_has_the_rules_before_them() {
    let (desired, marks) = (Desired::default(), InsideMarks::default());
    let wanted = Wanted::new(&desired, &marks);
    let mut filter = Filter::new(FilterConfig::default());
    let address = |last| IpAddr::from([10, 96, 0, last]);
    filter.guard(wanted, [], [address(1)]);
    let write = filter.pending(wanted).unwrap();
    assert_eq!(write.content, Content::Table(filter.table(wanted)));
    filter.written(write.fingerprint);
    filter.guard(wanted, [], [address(2)]);
    let write = filter.pending(wanted).unwrap();
    assert!(matches!(write.content, Content::Commands(commands) if commands.len() == 1));
    filter.guard(wanted, [], [address(3)]);
    filter.distrust();
    filter.trust(wanted, write.fingerprint);
    assert!(!filter.is_in_step());
    filter.trust(wanted, hash::table(&filter.table(wanted)));
    assert_eq!(filter.pending(wanted), None);
}

/// Returns rules with the table of family `arp`.
fn hiding() -> Rules {
    let config = FilterConfig {
        hides_arp: true,
        ..FilterConfig::default()
    };
    Rules::new(config, None)
}

fn set_scope(rules: &mut Rules, scope: Option<Scope>) {
    let admission = scope.map(|scope| rules::admission(scope, TrafficPolicy::Cluster));
    rules.set_frontend(FRONTEND, admission);
}

fn is_hidden(rules: &mut Rules) -> bool {
    let key = Key::new([ADDRESS.into()]);
    let arp = rules.table().arp;
    arp.is_some_and(|arp| arp.has_element("service-addresses", &key))
}

#[test]
fn only_external_service_addresses_are_hidden() {
    for (scope, is_service_address, expected) in [
        (Scope::External, true, true),
        // An interface has the address.
        (Scope::External, false, false),
        (Scope::Internal, true, false),
        (Scope::NodePort, false, false),
    ] {
        let mut rules = hiding();
        set_scope(&mut rules, Some(scope));
        rules.set_address(ADDRESS, is_service_address);
        assert_eq!(
            is_hidden(&mut rules),
            expected,
            "{scope:?}, {is_service_address}"
        );
    }
}

#[test]
fn a_removed_address_stays_hidden_until_the_kernel_does_not_have_it() {
    let mut rules = hiding();
    set_scope(&mut rules, Some(Scope::External));
    rules.set_address(ADDRESS, true);
    set_scope(&mut rules, None);
    rules.set_address(ADDRESS, false);
    let mut kernel = Observed::default();
    kernel.addresses.insert(ADDRESS, None);
    rules.release_on(&kernel);
    assert!(is_hidden(&mut rules));
    rules.release();
    assert!(!is_hidden(&mut rules));

    // An earlier process left the address.
    guard(&mut rules);
    assert!(is_hidden(&mut rules));
    // It returns as a cluster IP.
    set_scope(&mut rules, Some(Scope::Internal));
    rules.set_address(ADDRESS, true);
    rules.release();
    assert!(!is_hidden(&mut rules));
}

#[test]
fn the_address_of_a_retired_frontend_stays_hidden_while_it_is_kept() {
    let mut rules = hiding();
    let (wanted, filter) = rules.parts();
    filter.retire(wanted, FRONTEND);
    rules.set_address(ADDRESS, true);
    assert!(is_hidden(&mut rules));
    assert!(!rules.release_on(&with_server()));
    assert!(is_hidden(&mut rules));
    assert!(rules.release());
    assert!(!is_hidden(&mut rules));
}
