use super::*;

const KIND: &str = "failures to add addresses";

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Reports the `objects` of one kind, and returns the lines.
fn report(
    conditions: &mut LastingConditions,
    coverage: Coverage,
    objects: &[&str],
    now: Duration,
) -> Vec<String> {
    let mut report = conditions.report(coverage, now);
    for object in objects {
        report.add(Level::ERROR, KIND, object);
    }
    report.lines().into_iter().map(|line| line.text).collect()
}

fn all(conditions: &mut LastingConditions, objects: &[&str], now: u64) -> Vec<String> {
    report(conditions, Coverage::All, objects, seconds(now))
}

#[test]
fn a_condition_gets_a_line_at_its_beginning_at_growing_intervals_and_at_its_end() {
    let mut conditions = LastingConditions::default();
    assert_eq!(all(&mut conditions, &["a failed"], 100), ["a failed"]);
    let mut times = Vec::new();
    for now in (130..50_000).step_by(30) {
        let lines = all(&mut conditions, &["a failed"], now);
        times.extend(lines.into_iter().map(|line| (now - 100, line)));
    }
    let still: Vec<u64> = times.iter().map(|(time, _)| *time).collect();
    // Pauses of 1, 2, 4, .. minutes, at most an hour.
    assert_eq!(still[..7], [60, 180, 420, 900, 1_860, 3_780, 7_380]);
    assert_eq!(still[7] - still[6], 3_600);
    assert_eq!(times[1].1, "still, after 3m: a failed");
    assert_eq!(
        all(&mut conditions, &[], 50_100),
        ["over after 13h 53m 20s: a failed"]
    );
    assert!(all(&mut conditions, &[], 50_130).is_empty());
}

#[test]
fn many_objects_share_a_line_and_later_ones_are_named() {
    let mut conditions = LastingConditions::default();
    let names: Vec<String> = (0..1_000)
        .map(|number| format!("{number} failed"))
        .collect();
    let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
    assert_eq!(
        all(&mut conditions, &names, 0),
        ["1000 failures to add addresses; for example: 0 failed; 1 failed; 2 failed"]
    );
    assert!(all(&mut conditions, &names, 30).is_empty());
    let still = "still, after 1m: 1000 failures to add addresses; for example: 0 failed; 1 failed; 2 failed";
    assert_eq!(all(&mut conditions, &names, 60), [still]);

    // One of the next objects gets a line at once.
    names.push("x failed");
    assert_eq!(all(&mut conditions, &names, 90), ["x failed"]);
    // Ten more exceed what is left of the lines of an interval; one line counts them.
    let more: Vec<String> = (0..10).map(|number| format!("more {number}")).collect();
    names.extend(more.iter().map(String::as_str));
    assert_eq!(
        all(&mut conditions, &names, 91),
        ["10 failures to add addresses; for example: more 0; more 1; more 2"]
    );
    for (number, lines) in [1, 1, 1, 0, 0].into_iter().enumerate() {
        names.push(["y1", "y2", "y3", "y4", "y5"][number]);
        assert_eq!(all(&mut conditions, &names, 92).len(), lines);
    }
    let still = all(&mut conditions, &names, 180).remove(0);
    assert!(
        still.starts_with("still, after 3m: 1016 failures"),
        "{still}"
    );
    assert_eq!(all(&mut conditions, &[], 181).len(), 1);
}

#[test]
fn a_partial_report_ends_nothing() {
    let mut conditions = LastingConditions::default();
    let part = |conditions: &mut LastingConditions, objects: &[&str], now| {
        report(conditions, Coverage::Part, objects, seconds(now))
    };
    assert_eq!(part(&mut conditions, &["a"], 0), ["a"]);
    assert_eq!(part(&mut conditions, &["b"], 1), ["b"]);
    assert!(part(&mut conditions, &[], 2).is_empty());
    assert!(all(&mut conditions, &["b", "a"], 3).is_empty());
    let over = "over after 4s: 2 failures to add addresses; for example: b; a";
    assert_eq!(all(&mut conditions, &[], 4), [over]);
}

#[test]
fn a_condition_that_comes_and_goes_is_logged_at_growing_intervals() {
    let mut conditions = LastingConditions::default();
    let mut lines = Vec::new();
    for now in (0..3_600).step_by(5) {
        let objects: &[&str] = if now % 10 == 0 { &["a"] } else { &[] };
        lines.extend(all(&mut conditions, objects, now));
    }
    assert!((4..80).contains(&lines.len()), "{}", lines.len());
    assert_eq!(lines[..3], ["a", "over after 5s: a", "a"]);
}

#[test]
fn events_are_counted_after_the_first_ones() {
    let mut conditions = LastingConditions::default();
    let mut events =
        |objects: &[&str], now| report(&mut conditions, Coverage::Events, objects, seconds(now));
    assert_eq!(
        events(&["a", "b"], 0),
        ["2 failures to add addresses; for example: a; b"]
    );
    assert!(events(&["a"], 1).is_empty());
    let burst = ["c", "d", "e", "f"];
    assert_eq!(
        events(&burst, 2),
        ["4 failures to add addresses; for example: c; d; e"]
    );
    assert!(events(&burst, 3).is_empty());
    assert!(events(&[], 30).is_empty());
    assert_eq!(
        events(&[], 60),
        ["5 more failures to add addresses in 1m; for example: c; d; e"]
    );
    assert!(events(&[], 3_600).is_empty());
    assert_eq!(events(&["a"], 7_200), ["a"]);
}

#[test]
fn memory_and_lines_are_bounded() {
    let mut conditions = LastingConditions::default();
    let mut lines = 0;
    for round in 0..10 {
        let mut report = conditions.report(Coverage::All, seconds(round));
        for object in 0..20_000 {
            let kind = format!("kind {}", object % 100);
            report.add(
                Level::WARN,
                &kind,
                format!("{round} {object} {}", "x".repeat(600)),
            );
            report.add(Level::WARN, KIND, object);
        }
        lines += report.lines().len();
    }
    assert_eq!(conditions.kinds.len(), MAX_KINDS + 1);
    assert!(lines <= (MAX_KINDS + 1) * MAX_LINES, "{lines}");
    for lasting in conditions.kinds.values() {
        let groups = [&lasting.objects, &lasting.fresh, &lasting.seen];
        for group in groups {
            assert!(group.hashes.len() <= MAX_OBJECTS);
            assert!(group.samples.len() <= SAMPLES);
            let longest = group.samples.iter().map(String::len).max();
            assert!(longest.is_none_or(|length| length <= MAX_TEXT + 3));
        }
    }
}
