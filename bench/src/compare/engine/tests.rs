//! Compares the simulation with queueing theory, and checks properties of every scheduler.

use super::*;
use crate::compare::station::Discipline;
use crate::compare::{catalogue, outside};
use crate::random::Duration;

fn registry() -> Registry {
    let mut registry = Registry::kernel();
    outside::register(&mut registry).unwrap();
    registry
}

fn simulate(scenario: &Scenario, scheduler: &str, connections: u64, seed: u64) -> Outcome {
    run(scenario, &registry(), scheduler, connections, seed).unwrap()
}

fn assert_close(value: f64, expected: f64, tolerance: f64) {
    let error = (value / expected - 1.0).abs();
    assert!(error < tolerance, "{value} is not {expected}: {error:.3}");
}

/// Returns a scenario of one server with this number of cores and this load.
fn one_server(cores: u32, load: f64) -> Scenario {
    let mut scenario = catalogue::equal(1, 1);
    scenario.servers[0].cores = cores;
    scenario.load = load;
    scenario.limit = 100_000;
    scenario
}

/// Returns the probability that all `cores` servers of an M/M/c queue are busy at an arrival.
fn erlang_c(cores: u32, load: f64) -> f64 {
    let offered = f64::from(cores) * load;
    let mut term = 1.0;
    let mut idle = 1.0;
    for busy in 1..cores {
        term *= offered / f64::from(busy);
        idle += term;
    }
    let all = term * offered / f64::from(cores) / (1.0 - load);
    all / (idle + all)
}

#[test]
fn one_core_has_the_latency_of_an_m_m_1_queue() {
    for discipline in [Discipline::Sharing, Discipline::Queueing] {
        for load in [0.3, 0.7] {
            let mut scenario = one_server(1, load);
            scenario.discipline = discipline;
            let outcome = simulate(&scenario, "rr", 200_000, 3);
            assert_close(outcome.latency.mean(), 1.0 / (1.0 - load), 0.05);
        }
    }
}

#[test]
fn with_sharing_the_mean_latency_depends_on_the_mean_work_only() {
    // In M/G/1 with processor sharing, the mean latency does not depend on the distribution of work.
    let mut scenario = one_server(1, 0.6);
    scenario.workload.work = Duration::LogNormal {
        mean: 1.0,
        sigma: 1.2,
    };
    let outcome = simulate(&scenario, "rr", 400_000, 5);
    assert_close(outcome.latency.mean(), 1.0 / 0.4, 0.06);
}

#[test]
fn several_cores_have_the_latency_of_an_m_m_c_queue() {
    let mut scenario = one_server(4, 0.8);
    scenario.discipline = Discipline::Queueing;
    let outcome = simulate(&scenario, "rr", 400_000, 1);
    let waiting = erlang_c(4, 0.8) / (4.0 * 0.2);
    assert_close(outcome.latency.mean(), 1.0 + waiting, 0.05);
}

#[test]
fn lc_on_one_node_is_near_a_single_queue_and_rr_is_better_than_random() {
    // A single queue for all servers is M/M/64, the best possible. Random assignment is M/M/4 per
    // server.
    let scenario = catalogue::equal(1, 16);
    let best = 1.0 + erlang_c(64, 0.75) / (64.0 * 0.25);
    let random = 1.0 + erlang_c(4, 0.75) / (4.0 * 0.25);
    let lc = simulate(&scenario, "lc", 100_000, 1).latency.mean();
    let rr = simulate(&scenario, "rr", 100_000, 1).latency.mean();
    assert!(best * 0.99 < lc && lc < rr && rr < random, "{lc} {rr}");
}

#[test]
fn every_scheduler_runs_every_scenario_and_every_connection_is_accounted_for() {
    for scenario in catalogue::all() {
        for scheduler in registry().names() {
            let outcome = simulate(&scenario, scheduler, 1_000, 1);
            let fates = outcome.fates;
            let sum = fates.completed
                + fates.unserved
                + fates.rejected
                + fates.unanswered
                + fates.aborted
                + fates.still_open;
            let what = format!("{scheduler} in {}", scenario.name);
            assert_eq!(fates.arrived, sum, "{what}");
            assert!((500..2_000).contains(&fates.arrived), "{what}");
            assert!(fates.completed > 0, "{what}");
            // Little's law: the integral over time equals the sum over the connections.
            assert_close(outcome.area, outcome.sojourn, 1e-6);
            // The mean latency is at least close to the mean work of one second.
            assert!(outcome.latency.mean() > 0.6, "{what}");
        }
    }
}

#[test]
fn mean_connections_are_rate_times_latency() {
    let scenario = catalogue::equal(8, 16);
    let outcome = simulate(&scenario, "lc", 100_000, 9);
    let horizon = 100_000.0 / scenario.rate();
    let mean_connections = outcome.area / horizon;
    let little = scenario.rate() * outcome.latency.mean();
    assert_close(mean_connections, little, 0.02);
}

#[test]
fn the_same_seed_gives_the_same_results() {
    for scenario in catalogue::all() {
        for scheduler in ["lc", outside::NAME] {
            let figures = |seed| {
                let outcome = simulate(&scenario, scheduler, 3_000, seed);
                format!("{outcome:?}")
            };
            assert_eq!(figures(4), figures(4), "{}", scenario.name);
            assert_ne!(figures(4), figures(5), "{}", scenario.name);
        }
    }
}

#[test]
fn arrivals_do_not_depend_on_the_scheduler() {
    let scenario = catalogue::equal(4, 16);
    let arrived = |name: &str| simulate(&scenario, name, 5_000, 2).fates.arrived;
    assert_eq!(arrived("rr"), arrived("lc"));
}

#[test]
fn a_removed_server_gets_no_connections_and_its_clients_move() {
    let leaving = catalogue::all()
        .into_iter()
        .find(|scenario| scenario.name == "leaving")
        .unwrap();
    let outcome = simulate(&leaving, "rr", 20_000, 1);
    assert_eq!(outcome.fates.unanswered + outcome.fates.aborted, 0);
    // Round robin ignores the client: 15 of 16 connections move, with or without a change.
    let moved = outcome.undisturbed.moved_share().unwrap();
    assert_close(moved, 15.0 / 16.0, 0.03);
    assert!(outcome.after_change.all > 1_000);
}

#[test]
fn schedulers_that_count_prefer_a_refusing_server_but_not_a_silent_one() {
    let failing = |name: &str| {
        catalogue::all()
            .into_iter()
            .find(|scenario| scenario.name == name)
            .unwrap()
    };
    let lost = |scenario: &Scenario, scheduler: &str| {
        simulate(scenario, scheduler, 60_000, 1).fates.unanswered
    };
    let (refusing, silent) = (failing("refusing"), failing("silent"));
    // A refused connection ends at once, so the server looks idle.
    assert!(lost(&refusing, "lc") > lost(&refusing, "rr"));
    // A connection without an answer is counted for a minute, so the server looks busy.
    assert!(10 * lost(&silent, "lc") < lost(&silent, "rr"));
}

#[test]
fn an_unknown_scheduler_is_an_error() {
    let scenario = catalogue::equal(1, 4);
    assert!(run(&scenario, &registry(), "no-such", 100, 1).is_err());
}
