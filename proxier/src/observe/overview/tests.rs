//! The view of example facts.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::assemble::{HeadFacts, Parts, overview, select};
use super::census::Census;
use super::counters::{CounterTable, Counts, ServerCounts};
use super::directory::{Detail, Directory, EndpointDetail, Entry, EntryFrontend, FrontendDetail};
use super::history::{Change, KEPT_CHANGES, Past};
use super::model::Overview;
use super::{Query, Sort, csv, html, text};
use crate::cluster::model::{
    Location, ObjectName, Protocol, SchedulerFlags, ServicePortName, TrafficPolicy,
};
use crate::cluster::problem::Problem;
use crate::dataplane;
use crate::observe::health::{ApiView, Facts, HealthVerdict};
use crate::plan::frontend::Frontend;
use crate::plan::{Balancing, FrontendKind};

const NOW: Duration = Duration::from_secs(1_000);

fn wall(before: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_000_000 - before)
}

fn frontend(protocol: Protocol, address: [u8; 4], port: u16) -> Frontend {
    Frontend {
        address: address.into(),
        protocol,
        port,
    }
}

fn counts(active: u64, total: u64, rate: f64, byte_rate: f64) -> Counts {
    Counts {
        active: Some(active),
        inactive: Some(active / 4),
        total: Some(total),
        bytes: Some(total * 5_000),
        rate: Some(rate),
        byte_rate: Some(byte_rate),
    }
}

/// Returns the Services of a node: one is busy, one has no endpoint.
fn census() -> Census {
    let web = frontend(Protocol::Tcp, [10, 96, 0, 10], 80);
    let external = frontend(Protocol::Tcp, [198, 51, 100, 7], 80);
    let dns = frontend(Protocol::Udp, [10, 96, 0, 2], 53);
    let api = frontend(Protocol::Tcp, [10, 96, 0, 30], 443);
    let entry = |frontends: &[Frontend], endpoints, draining, unserved: &[&'static str]| Entry {
        frontends: (frontends.iter())
            .map(|&frontend| EntryFrontend {
                frontend,
                inside: None,
                relayed: None,
            })
            .collect(),
        endpoints,
        draining,
        unserved: unserved.iter().copied().collect(),
    };
    let directory = Directory(
        [
            ("billing/api".into(), entry(&[api], 0, 0, &["no endpoint"])),
            ("kube-system/dns:udp".into(), entry(&[dns], 2, 0, &[])),
            ("shop/web:http".into(), entry(&[web, external], 4, 1, &[])),
        ]
        .into(),
    );
    let mut census = Census::new(directory, NOW - Duration::from_millis(500));
    census.cost = Duration::from_micros(640);
    let mut table = CounterTable::new();
    let traffic = [
        (web, counts(180, 90_000, 42.5, 812_000.0)),
        (external, counts(20, 10_000, 7.5, 88_000.0)),
        (dns, counts(0, 400_000, 130.0, 21_000.0)),
        (api, counts(0, 0, 0.0, 0.0)),
    ];
    for (frontend, all) in traffic {
        let server = ServerCounts {
            all,
            ..ServerCounts::default()
        };
        table.insert(frontend.into(), server);
    }
    census.count(table);
    census
}

fn problem(object: &str) -> Problem {
    Problem::new(
        object,
        "spec.externalIPs[0]",
        "bogus",
        "is no address; it is not served",
    )
}

pub(super) fn head(problems: &[Problem]) -> HeadFacts {
    let change = |before, cause: &str, what: &str| Change::new(wall(before), cause, what);
    HeadFacts {
        node: "node-a".to_owned(),
        mode: "ipvs",
        started: wall(93_000),
        wall: wall(0),
        facts: Facts {
            has_round: true,
            updated: Some(wall(4)),
            ..Facts::default()
        },
        verdict: HealthVerdict {
            is_fresh: true,
            ineligible: None,
            reasons: Vec::new(),
        },
        api: ApiView {
            age: Some(Duration::from_secs(12)),
            rejection: None,
        },
        past: Past {
            rounds: 817,
            repairs: 2,
            took: Duration::from_millis(3),
            counts: dataplane::Counts {
                frontends: 4,
                draining: 1,
            },
            problems: problems.into(),
            changes: [
                change(
                    3_600,
                    "repair: another program changed it",
                    "add destination 10.244.1.2:8080 to TCP 10.96.0.10:80 (shop/web:http)",
                ),
                change(
                    4,
                    "EndpointSlice shop/web-x7k2p",
                    "set destination 10.244.3.9:8080 of TCP 10.96.0.10:80 (shop/web:http) to weight 0",
                ),
            ]
            .into(),
            ..Past::default()
        },
    }
}

fn detail() -> Detail {
    let location = |node: &str, zone: &str| {
        Some(Arc::new(Location {
            node: Some(node.into()),
            zone: Some(zone.into()),
            ..Location::default()
        }))
    };
    let endpoint = |last, location, weight, reason, until| EndpointDetail {
        address: ([10, 244, 1, last], 8080).into(),
        location,
        weight,
        is_new: false,
        reason,
        until,
        relayed: None,
    };
    let web = frontend(Protocol::Tcp, [10, 96, 0, 10], 80);
    let frontend = FrontendDetail {
        frontend: web,
        key: web.into(),
        port: "http".into(),
        kind: FrontendKind::ClusterIp,
        clients: "all",
        policy: TrafficPolicy::Cluster,
        balancing: Balancing {
            scheduler: "rr".into(),
            flags: SchedulerFlags::default(),
            affinity_secs: Some(600),
        },
        unserved: None,
        endpoints: vec![
            endpoint(2, location("node-a", "eu-1a"), Some(1), None, None),
            endpoint(3, location("node-b", "eu-1b"), Some(3), None, None),
            endpoint(
                4,
                location("node-b", "eu-1b"),
                None,
                Some("not ready"),
                None,
            ),
            endpoint(
                9,
                None,
                None,
                Some("removed"),
                Some(NOW + Duration::from_secs(3_000)),
            ),
        ],
    };
    Detail {
        service: ObjectName::new("shop", "web"),
        frontends: vec![frontend],
        left_out_frontends: 0,
        left_out: 0,
    }
}

/// Returns the counters that are read for [`detail`].
fn visible() -> CounterTable {
    let mut visible = census().table;
    let web = visible.get_mut(&frontend(Protocol::Tcp, [10, 96, 0, 10], 80).into());
    let of = |last| std::net::SocketAddr::from(([10, 244, 1, last], 8080));
    web.unwrap().endpoints = [
        (of(2), counts(90, 45_000, 21.25, 400_000.0)),
        (of(3), counts(84, 44_000, 21.25, 408_000.0)),
        (of(9), counts(6, 1_000, 0.0, 4_000.0)),
    ]
    .into();
    visible
}

/// Returns the view of the example for a query.
fn view_of(query: &Query, problems: &[Problem]) -> Overview {
    let (head, mut census, detail, visible) = (head(problems), census(), detail(), visible());
    census.order(query.sort);
    let parts = Parts {
        head: &head,
        census: &census,
        detail: query.service.is_some().then_some(&detail),
        visible: &visible,
        notes: &[],
        source: "IPVS",
        now: NOW,
    };
    overview(parts, &select(&census, problems, query), query)
}

/// Returns the example that the documentation shows.
pub(crate) fn example() -> (Query, Overview) {
    let query = Query {
        service: Some(ObjectName::new("shop", "web")),
        ..Query::default()
    };
    let view = view_of(&query, &[problem("Service shop/web")]);
    (query, view)
}

fn names(query: &Query) -> Vec<String> {
    let view = view_of(query, &[problem("Service shop/web")]);
    view.services.rows.iter().map(text::name).collect()
}

#[test]
fn services_are_ordered_filtered_and_paged() {
    let (api, dns, web) = ("billing/api", "kube-system/dns:udp", "shop/web:http");
    let by = |sort| Query {
        sort,
        ..Query::default()
    };
    // Where none are open, those that had the most so far come first.
    assert_eq!(names(&by(Sort::Connections)), [web, dns, api]);
    assert_eq!(names(&by(Sort::New)), [dns, web, api]);
    assert_eq!(names(&by(Sort::Bytes)), [web, dns, api]);
    assert_eq!(names(&by(Sort::Name)), [api, dns, web]);
    let filtered = |filter: &str, only_wrong| Query {
        filter: filter.to_owned(),
        only_wrong,
        ..by(Sort::Name)
    };
    assert_eq!(names(&filtered("", true)), [api, web]);
    assert_eq!(names(&filtered("198.51.100.7:80", false)), [web]);
    assert_eq!(names(&filtered("kube-", false)), [dns]);
    assert_eq!(names(&filtered("state:draining", false)), [web]);
    assert_eq!(names(&filtered("nothing", false)), [""; 0]);
    let page = |first, rows| Query {
        first,
        rows,
        ..by(Sort::Name)
    };
    assert_eq!(names(&page(1, 1)), [dns]);
    assert_eq!(names(&page(2, 5)), [web]);
    assert_eq!(names(&page(9, 5)), [""; 0]);
    assert_eq!(names(&page(usize::MAX, usize::MAX)), [""; 0]);
}

#[test]
fn counts_are_those_of_all_frontends_and_faults_have_words() {
    let (_, view) = example();
    let list = &view.services;
    assert_eq!((list.total, list.matching, list.wrong), (3, 3, 2));
    let web = &list.rows[0];
    assert_eq!(text::frontends(web), "TCP 10.96.0.10:80 +1");
    assert_eq!(text::state(web), "1 problem; 1 draining");
    assert_eq!(text::traffic(&web.traffic), ["200", "50", "50", "900.0k"]);
    assert_eq!(text::state(&list.rows[2]), "no endpoint");
}

#[test]
fn endpoints_have_their_share_and_the_reason_why_they_get_nothing() {
    let (_, view) = example();
    let service = view.service.unwrap();
    assert_eq!(service.problems.len(), 1);
    let endpoints = &service.frontends[0].endpoints;
    let shown = |place: usize| {
        let it = &endpoints[place];
        let shares = (text::percent(it.share), text::percent(it.fair_share));
        (shares.0, shares.1, text::rotation(it))
    };
    let expected = |share: &str, fair: &str, state: &str| {
        (share.to_owned(), fair.to_owned(), state.to_owned())
    };
    // The weights 1 and 3 promise a quarter and three, but both get as much.
    assert_eq!(shown(0), expected("50%", "25%", "in rotation"));
    assert_eq!(shown(1), expected("50%", "75%", "in rotation"));
    assert_eq!(shown(2), expected("-", "-", "not ready"));
    assert_eq!(
        shown(3),
        expected("-", "-", "removed; draining, at most 50m left")
    );
}

#[test]
fn the_json_twin_is_read_as_it_was_written() {
    let (_, view) = example();
    let text = serde_json::to_string(&view).unwrap();
    assert_eq!(serde_json::from_str::<Overview>(&text).unwrap(), view);
}

/// A tenant chooses names in manifests, and messages of the API server may quote any text.
#[test]
fn no_text_of_an_object_is_markup_a_formula_or_controls_the_terminal() {
    let evil = "<script>alert(1)</script>\u{1b}[2J\",=1";
    let (mut query, mut view) = example();
    let row = &mut view.services.rows[0];
    row.namespace = evil.to_owned();
    row.faults = vec![evil.to_owned()];
    row.frontend = evil.to_owned();
    view.head.node = evil.to_owned();
    view.head.reasons = vec![evil.to_owned()];
    view.head.notes = vec![evil.to_owned()];
    view.head.problems = vec![evil.to_owned()];
    view.changes[0].cause = evil.to_owned();
    view.changes[0].change = evil.to_owned();
    let service = view.service.as_mut().unwrap();
    service.name = evil.to_owned();
    service.problems = vec![evil.to_owned()];
    service.frontends[0].endpoints[0].node = evil.to_owned();
    service.frontends[0].endpoints[0].out_of_rotation = Some(evil.to_owned());
    query.filter = evil.to_owned();
    let page = html::html(&view, &query);
    assert!(
        !page.contains("<script") && !page.contains('\u{1b}'),
        "{page}"
    );
    assert!(page.matches("&lt;script&gt;").count() >= 10, "{page}");
    let page = text::page(&view);
    assert!(!page.contains('\u{1b}'), "{page}");
    view.service = None;
    let rows = csv::csv(&view);
    let row = rows.lines().nth(1).unwrap();
    assert!(
        row.starts_with("\"<script>alert(1)</script>\u{1b}[2J\"\",=1\","),
        "{row}"
    );
}

#[test]
fn the_same_change_is_counted_and_old_ones_are_forgotten() {
    let mut past = Past::default();
    for round in 0..100 {
        past.add(Change::new(wall(100 - round), "repair", "add"));
    }
    assert_eq!((past.changes.len(), past.changes[0].times), (1, 100));
    for round in 0..100 {
        past.add(Change::new(wall(0), "plan", &round.to_string()));
    }
    assert_eq!(past.changes.len(), KEPT_CHANGES);
    assert_eq!(past.changes.back().unwrap().what, "99");
    let long = Change::new(wall(0), &"x".repeat(10_000), &"y".repeat(10_000));
    assert!(long.cause.len() + long.what.len() < 1_000);
}

/// A large node: its order costs little, and an answer is bounded.
#[test]
fn an_answer_about_ten_thousand_services_is_small() {
    let (mut directory, mut table) = (Directory::default(), CounterTable::new());
    for number in 0..10_000_u32 {
        let [_, _, high, low] = number.to_be_bytes();
        let web = frontend(Protocol::Tcp, [10, 96, high, low], 80);
        let name = ServicePortName::from(&*format!("ns/service-{number}"));
        let entry = Entry {
            frontends: [EntryFrontend {
                frontend: web,
                inside: None,
                relayed: None,
            }]
            .into_iter()
            .collect(),
            ..Entry::default()
        };
        directory.0.insert(name, entry);
        let server = ServerCounts {
            all: counts(u64::from(number), 1, 1.0, 1.0),
            ..ServerCounts::default()
        };
        table.insert(web.into(), server);
    }
    let mut census = Census::new(directory, NOW);
    census.count(table);
    census.order(Sort::Connections);
    let head = head(&[]);
    let query = Query::parse("rows=9999");
    let parts = Parts {
        head: &head,
        census: &census,
        detail: None,
        visible: &CounterTable::new(),
        notes: &[],
        source: "IPVS",
        now: NOW,
    };
    let view = overview(parts, &select(&census, &[], &query), &query);
    assert_eq!(text::name(&view.services.rows[0]), "ns/service-9999");
    assert_eq!(
        (view.services.rows.len(), view.services.matching),
        (200, 10_000)
    );
    let page = html::html(&view, &query);
    assert!(page.len() < 100_000, "{}", page.len());
    assert!(page.contains("Shown: 1 to 200 of 10000"), "{page}");
}
