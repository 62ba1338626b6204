//! Rounds on a kernel that lacks a scheduler of the plan.

use super::*;

/// Returns a cluster of 50 Services with the annotation `scheduler: mh`, 50 without, and an endpoint each.
fn cluster() -> Vec<Manifest> {
    let services = (0..100).flat_map(|number: u8| {
        let name = format!("s{number}");
        let service = Manifest::service(&name)
            .cluster_ip(&format!("10.96.4.{number}"))
            .port("http", "TCP", 80);
        let service = match number % 2 {
            0 => service.annotation("ipvs-proxier.io/scheduler", "mh"),
            _ => service,
        };
        let slice = Manifest::slice_of(&name).port("http", "TCP", 80);
        [service, slice.endpoint("10.244.1.2")]
    });
    services.chain([node()]).collect()
}

/// Returns the number of virtual servers in the kernel with each scheduler.
fn schedulers(proxier: &Fake) -> BTreeMap<String, usize> {
    let mut count = BTreeMap::new();
    for server in proxier.dataplane.kernel.state.virtual_servers.values() {
        let scheduler = server.definition.scheduler.unwrap();
        *count.entry(scheduler.to_string()).or_default() += 1;
    }
    count
}

fn lacking(names: &[&str]) -> FakeKernel {
    let mut kernel = FakeKernel::default();
    kernel.machine.addresses.insert([172, 18, 0, 2].into());
    kernel.lacks = names.iter().map(|name| name.parse().unwrap()).collect();
    kernel
}

#[test]
fn a_missing_scheduler_costs_one_question_and_no_failed_op() {
    let directory = tempfile::tempdir().unwrap();
    let kernel = lacking(&["wlc", "mh"]);
    let mut proxier = scheduling(kernel, &directory.path().join("ledger"), "wlc");
    receive(&mut proxier, &cluster());
    let applied = proxier.sync(START).unwrap();
    assert_eq!(applied.failures().count(), 0);
    assert_eq!(schedulers(&proxier), [("rr".to_owned(), 100)].into());
    assert_eq!(
        proxier.dataplane.kernel.scheduler_questions, 3,
        "wlc, mh and rr"
    );
    // Problems: one for each annotation, and one for the default.
    assert_eq!(proxier.problems().len(), 51);

    // Later rounds ask no more.
    receive(&mut proxier, &cluster());
    proxier.resync(START).unwrap();
    assert_eq!(proxier.dataplane.kernel.scheduler_questions, 3);
}

#[test]
fn a_missing_scheduler_is_used_when_the_kernel_has_it() {
    let directory = tempfile::tempdir().unwrap();
    let kernel = lacking(&["wlc", "mh"]);
    let mut proxier = scheduling(kernel, &directory.path().join("ledger"), "wlc");
    receive(&mut proxier, &cluster());
    proxier.sync(START).unwrap();

    // The first question has the same answer.
    let mut now = proxier.next_due().unwrap();
    let applied = proxier.sync(now).unwrap();
    assert_eq!(
        (applied.changes.ops.len(), applied.found_schedulers.len()),
        (0, 0)
    );
    assert_eq!(proxier.dataplane.kernel.scheduler_questions, 5);

    // The administrator runs modprobe ip_vs_wlc, and later modprobe ip_vs_mh.
    for (scheduler, expected) in [
        ("wlc", vec![("wlc", 100)]),
        ("mh", vec![("mh", 50), ("wlc", 50)]),
    ] {
        let name: ipvs::SchedulerName = scheduler.parse().unwrap();
        proxier.dataplane.kernel.lacks.remove(&name);
        let due = proxier.next_due().unwrap();
        assert_eq!(due - now, Duration::from_secs(300));
        now = due;
        let applied = proxier.sync(now).unwrap();
        assert_eq!(applied.found_schedulers, [scheduler.into()]);
        assert_eq!(applied.failures().count(), 0);
        let expected = expected
            .iter()
            .map(|&(name, count)| (name.to_owned(), count));
        assert_eq!(schedulers(&proxier), expected.collect());
    }
    assert_eq!(proxier.problems(), []);
    assert_eq!(proxier.next_due(), None);
}

#[test]
fn a_kernel_that_cannot_tell_its_schedulers_gets_the_default_after_the_first_failure() {
    let directory = tempfile::tempdir().unwrap();
    let kernel = FakeKernel {
        hides_schedulers: true,
        ..lacking(&["wlc", "mh"])
    };
    let mut proxier = scheduling(kernel, &directory.path().join("ledger"), "wlc");
    receive(&mut proxier, &cluster());
    let mut now = START;
    proxier.sync(now).unwrap();
    assert_eq!(proxier.next_due(), Some(START), "at once");
    while now < START + Duration::from_secs(2) {
        proxier.sync(now).unwrap();
        now = proxier.next_due().unwrap();
    }
    assert_eq!(schedulers(&proxier), [("rr".to_owned(), 100)].into());

    // The kernel cannot tell whether it has the schedulers now, so the working ones stay.
    assert_eq!(now, START + Duration::from_secs(300));
    let applied = proxier.sync(now).unwrap();
    assert_eq!(
        (applied.changes.ops.len(), applied.found_schedulers.len()),
        (0, 0)
    );
}

/// Each unknown name makes the kernel start modprobe.
#[test]
fn invented_schedulers_cost_a_bounded_number_of_questions() {
    let directory = tempfile::tempdir().unwrap();
    let mut proxier = proxier(FakeKernel::default(), &directory.path().join("ledger"));
    let services = (0..200).map(|number: u8| {
        Manifest::service(&format!("s{number}"))
            .annotation("ipvs-proxier.io/scheduler", &format!("x{number}"))
            .cluster_ip(&format!("10.96.4.{number}"))
            .port("http", "TCP", 80)
    });
    let services: Vec<Manifest> = services.chain([node()]).collect();
    receive(&mut proxier, &services);
    assert_eq!(proxier.sync(START).unwrap().failures().count(), 0);
    assert_eq!(schedulers(&proxier), [("rr".to_owned(), 200)].into());
    assert!(proxier.dataplane.kernel.scheduler_questions <= 65);
    let now = proxier.next_due().unwrap();
    proxier.sync(now).unwrap();
    assert!(proxier.dataplane.kernel.scheduler_questions <= 65 + 64);
}
