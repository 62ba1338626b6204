//! A scheduler of another crate chooses for the Services that name it.

use proxier::testing::dataplane::userspace::Userspace;
use proxier::testing::sync::Proxier;
use relay::{InsideClients, RelayLimits};
use schedulers::{Registry, Request, Scheduler, ServerId, Servers};

use super::in_process::{config, events};
use super::*;

/// Picks the endpoint with the highest port.
#[derive(Debug)]
struct Highest;

impl Scheduler for Highest {
    fn pick(&mut self, servers: &Servers, _: &Request) -> Option<ServerId> {
        let highest = servers.iter().max_by_key(|(_, server)| server.port());
        highest.map(|(id, _)| id)
    }
}

/// Returns a dataplane that has the kernel's schedulers and `highest`.
fn userspace() -> Userspace {
    let mut registry = Registry::kernel();
    registry.register("highest", |_| Box::new(Highest)).unwrap();
    let started = Userspace::start(RelayLimits::default(), InsideClients::default());
    started.unwrap().choosing(registry)
}

#[test]
fn the_annotation_names_a_registered_scheduler_and_an_unknown_name_is_a_problem() {
    let mut proxier = Proxier::of(userspace(), config());
    let (port, endpoints) = (unused_port(), [endpoint(), endpoint(), endpoint()]);
    let highest = endpoints.iter().max().map(|&it| [it].into());
    let all = Some(BTreeSet::from(endpoints));
    for (at, (annotation, expected, is_known)) in [
        ("", all.clone(), true),
        ("ipvs-proxier.io/scheduler: highest", highest, true),
        ("ipvs-proxier.io/scheduler: lowest", all, false),
    ]
    .into_iter()
    .enumerate()
    {
        proxier.receive(events(&manifest("TCP", port, &endpoints, annotation)));
        let now = Duration::from_secs(at as u64 + 1);
        let applied = proxier.sync(now).unwrap();
        assert_eq!(applied.failures().count(), 0, "{annotation}");
        assert_eq!(answers(port).ok(), expected, "{annotation}");
        let problems: Vec<_> = proxier.problems().iter().map(ToString::to_string).collect();
        let is_named = problems.iter().any(|it| it.contains("lowest"));
        assert_eq!(is_named, !is_known, "{problems:?}");
    }
}
