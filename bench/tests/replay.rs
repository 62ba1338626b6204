//! Runs `bench replay`: input, output and exit code.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};

struct Answer {
    picks: String,
    complaint: String,
    code: Option<i32>,
}

fn replay(trace: &[u8]) -> Answer {
    let mut program = Command::new(env!("CARGO_BIN_EXE_bench"))
        .arg("replay")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = program.stdin.take().unwrap();
    let trace = trace.to_vec();
    // In a thread: otherwise both programs could wait for space in a pipe. Writing fails if the
    // program exits before the end of the trace.
    let writer = std::thread::spawn(move || input.write_all(&trace));
    let output = program.wait_with_output().unwrap();
    let _ = writer.join().unwrap();
    Answer {
        picks: String::from_utf8(output.stdout).unwrap(),
        complaint: String::from_utf8(output.stderr).unwrap(),
        code: output.status.code(),
    }
}

#[track_caller]
fn picks(trace: &str, expected: &str) {
    let answer = replay(trace.as_bytes());
    assert_eq!(answer.code, Some(0), "{}", answer.complaint);
    assert_eq!(answer.complaint, "");
    let picks: Vec<&str> = answer.picks.lines().collect();
    assert_eq!(picks.join(" "), expected);
}

fn pick(source: &str, destination: &str, at: f64) -> String {
    format!(
        r#"{{"pick":{{"source":"{source}","sourcePort":1234,"destination":"{destination}","destinationPort":80,"at":{at}}}}}"#
    )
}

fn pick4(at: f64) -> String {
    pick("10.1.2.3", "192.0.2.9", at)
}

#[test]
fn every_kind_of_event_is_applied() {
    let trace = format!(
        r#"{{"scheduler":"wlc","flags":[],"flavour":"total","family":4}}
{pick}
{{"add":"first","address":"10.0.0.1","port":80,"weight":1}}
{{"add":"B","address":"10.0.0.2","port":80,"weight":1}}
{pick}
{{"connections":"B","active":1,"inactive":0}}
{pick}
{{"connections":"first","active":0,"inactive":258}}
{pick}
{{"weight":"first","to":3}}
{pick}
{{"overload":"first","on":true}}
{pick}
{{"overload":"first","on":false}}
{{"remove":"B"}}
{pick}
{{"remove":"first"}}
{pick}
"#,
        pick = pick4(0.0)
    );
    picks(&trace, "- B first B first B first -");
}

#[test]
fn all_fourteen_schedulers_pick() {
    for scheduler in [
        "rr", "wrr", "lc", "wlc", "lblc", "lblcr", "sh", "dh", "sed", "nq", "mh", "fo", "ovf",
        "twos",
    ] {
        for flavour in ["total", "classic"] {
            let trace = format!(
                r#"{{"scheduler":"{scheduler}","flags":["port","fallback"],"flavour":"{flavour}","family":4}}
{{"add":"A","address":"10.0.0.1","port":80,"weight":1}}
{}
"#,
                pick4(0.0)
            );
            picks(&trace, "A");
        }
    }
}

#[test]
fn flavours_differ() {
    for (flavour, expected) in [("total", "B"), ("classic", "A")] {
        let trace = format!(
            r#"{{"scheduler":"lc","flags":[],"flavour":"{flavour}","family":4}}
{{"add":"A","address":"10.0.0.1","port":80,"weight":1}}
{{"add":"B","address":"10.0.0.2","port":80,"weight":1}}
{{"connections":"A","active":1,"inactive":0}}
{{"connections":"B","active":0,"inactive":257}}
{}
"#,
            pick4(0.0)
        );
        picks(&trace, expected);
    }
}

#[test]
fn ipv6_addresses_and_flags_are_applied() {
    let trace = format!(
        r#"{{"scheduler":"sh","flags":["fallback"],"flavour":"total","family":6}}
{{"add":"A","address":"fd00::1","port":80,"weight":1}}
{{"add":"B","address":"fd00::2","port":80,"weight":1}}
{{"add":"C","address":"fd00::3","port":80,"weight":1}}
{}
{}
{}
"#,
        pick("2001:db8::1", "fd00::9", 0.0),
        pick("2001:db8:1:2:3:4:5:6", "fd00::9", 1.0),
        pick("fd00::1", "fd00::9", 1.0),
    );
    picks(&trace, "C B A");
}

#[test]
fn lblc_forgets_an_address_after_a_day() {
    let trace = format!(
        r#"{{"scheduler":"lblc"}}
{{"add":"A","address":"10.0.0.1","port":80,"weight":2}}
{{"add":"B","address":"10.0.0.2","port":80,"weight":2}}
{}
{{"connections":"B","active":1,"inactive":0}}
{}
{}
"#,
        pick4(0.5),
        pick4(12.25),
        // More than a day later, and after the next half-hourly collection.
        pick4(90_000.0),
    );
    picks(&trace, "B B A");
}

#[test]
fn a_name_and_an_address_can_be_used_again_and_start_without_connections() {
    let trace = format!(
        r#"{{"scheduler":"lc","flags":[],"flavour":"total","family":4}}
{{"add":"A","address":"10.0.0.1","port":80,"weight":1}}
{{"add":"B","address":"10.0.0.2","port":80,"weight":1}}
{{"connections":"A","active":5,"inactive":0}}
{{"connections":"B","active":1,"inactive":0}}
{{"overload":"A","on":true}}
{{"remove":"A"}}
{}
{{"add":"A","address":"10.0.0.1","port":80,"weight":1}}
{}
"#,
        pick4(0.0),
        pick4(0.0),
    );
    picks(&trace, "B A");
}

#[test]
fn a_pick_is_printed_before_the_next_line_is_read() {
    let mut program = Command::new(env!("CARGO_BIN_EXE_bench"))
        .arg("replay")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = program.stdin.take().unwrap();
    let mut output = BufReader::new(program.stdout.take().unwrap());
    writeln!(input, r#"{{"scheduler":"rr"}}"#).unwrap();
    for name in ["A", "B"] {
        writeln!(
            input,
            r#"{{"add":"{name}","address":"10.0.0.{}","port":80,"weight":1}}"#,
            name.len() + usize::from(name == "B")
        )
        .unwrap();
        writeln!(input, "{}", pick4(0.0)).unwrap();
        input.flush().unwrap();
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, format!("{name}\n"));
    }
    drop(input);
    assert!(program.wait().unwrap().success());
}

/// Asserts that `line`, the fourth of a trace, is rejected with `complaint`.
#[track_caller]
fn rejected(line: &str, complaint: &str) {
    let trace = format!(
        r#"{{"scheduler":"rr","flags":[],"flavour":"total","family":4}}
{{"add":"A","address":"10.0.0.1","port":80,"weight":1}}
{}
{line}
{}
"#,
        pick4(5.0),
        pick4(6.0)
    );
    let answer = replay(trace.as_bytes());
    assert_eq!(answer.code, Some(1), "{line}");
    assert_eq!(answer.picks, "A\n", "{line}");
    assert!(
        answer.complaint.contains("line 4: ") && answer.complaint.contains(complaint),
        "{line} gives {}",
        answer.complaint
    );
}

#[test]
fn malformed_lines_are_rejected_with_their_number() {
    rejected("", "");
    rejected("{", "EOF");
    rejected("nonsense", "");
    rejected("[]", "object");
    rejected("null", "object");
    rejected("{}", "unknown event");
    rejected(r#"{"remove":"A"} {}"#, "trailing");
    rejected(r#"{"remove":"A","why":1}"#, "unknown field `why`");
    rejected(r#"{"remove":"A","remove":"A"}"#, "duplicate field");
    rejected(r#"{"remove":"B"}"#, "unknown server \"B\"");
    rejected(r#"{"remove":1}"#, "string");
    rejected(r#"{"weight":"A"}"#, "missing field `to`");
    rejected(r#"{"weight":"A","to":-1}"#, "");
    rejected(r#"{"weight":"A","to":1.5}"#, "");
    rejected(r#"{"weight":"A","to":4294967295}"#, "above 2147483647");
    rejected(r#"{"weight":"B","to":1}"#, "unknown server \"B\"");
    rejected(
        r#"{"connections":"A","active":1}"#,
        "missing field `inactive`",
    );
    rejected(
        r#"{"connections":"A","active":-1,"inactive":0}"#,
        "invalid value",
    );
    rejected(r#"{"overload":"A","on":1}"#, "boolean");
}

#[test]
fn impossible_servers_are_rejected() {
    let add = |name: &str, address: &str, port: u32, weight: u32| {
        format!(r#"{{"add":"{name}","address":"{address}","port":{port},"weight":{weight}}}"#)
    };
    rejected(&add("A", "10.0.0.2", 80, 1), "already");
    rejected(&add("B", "10.0.0.1", 80, 1), "10.0.0.1:80 already exists");
    rejected(&add("B", "10.0.0.2", 80, 1 << 31), "above 2147483647");
    rejected(&add("B", "10.0.0.2", 65_536, 1), "65536");
    rejected(&add("B", "10.0.0", 80, 1), "address");
    rejected(&add("B", "fd00::1", 80, 1), "family");
    rejected(&add("-", "10.0.0.2", 80, 1), "name");
    rejected(&add("", "10.0.0.2", 80, 1), "name");
    rejected(&add("B\\nC", "10.0.0.2", 80, 1), "name");
}

#[test]
fn impossible_picks_are_rejected() {
    rejected(&pick4(4.9), "before");
    rejected(&pick4(-1.0), "time");
    rejected(&pick("fd00::1", "192.0.2.9", 5.0), "family");
    rejected(&pick("10.1.2.3", "fd00::1", 5.0), "family");
    let pick = pick4(5.0);
    rejected(&pick.replace("80,", "80,\"ttl\":3,"), "unknown field `ttl`");
    rejected(&pick.replace(r#","at":5"#, ""), "missing field `at`");
    rejected(&pick.replace("1234", "70000"), "70000");
    rejected(&pick.replace(r#""at":5"#, r#""at":"5""#), "string");
    rejected(
        r#"{"pick":["10.1.2.3",1,"192.0.2.9",80,5.0]}"#,
        "expected an object",
    );
}

#[test]
fn headers_are_checked() {
    for (header, complaint) in [
        ("", "header is missing"),
        ("{}", "missing field `scheduler`"),
        (r#"["rr",[],"total",4]"#, "object"),
        (
            r#"{"scheduler":"rrr"}"#,
            "unknown scheduler \"rrr\"; known: dh, fo,",
        ),
        (r#"{"scheduler":"rr","seed":1}"#, "unknown field `seed`"),
        (r#"{"scheduler":"rr","flags":["ports"]}"#, "ports"),
        (r#"{"scheduler":"rr","flags":["port","port"]}"#, "twice"),
        (r#"{"scheduler":"rr","flavour":"new"}"#, "new"),
        (r#"{"scheduler":"rr","family":5}"#, "family 5"),
        (r#"{"scheduler":"rr","family":"4"}"#, "string"),
        (
            r#"{"add":"A","address":"10.0.0.1","port":80,"weight":1}"#,
            "unknown field `add`",
        ),
    ] {
        let answer = replay(header.as_bytes());
        assert_eq!(answer.code, Some(1), "{header}");
        assert_eq!(answer.picks, "");
        assert!(
            answer.complaint.contains("line 1: ") && answer.complaint.contains(complaint),
            "{header} gives {}",
            answer.complaint
        );
    }
}

#[test]
fn invalid_utf_8_is_rejected() {
    let answer = replay(b"{\"scheduler\":\"rr\"}\n{\"remove\":\"\xff\"}\n");
    assert_eq!(answer.code, Some(1));
    assert!(
        answer.complaint.contains("line 2: "),
        "{}",
        answer.complaint
    );
}

#[test]
fn crlf_line_ends_and_a_missing_last_line_end_are_accepted() {
    let trace = format!(
        "{{\"scheduler\":\"rr\"}}\r\n{}\r\n{}",
        r#"{"add":"A","address":"10.0.0.1","port":80,"weight":1}"#,
        pick4(0.0)
    );
    picks(&trace, "A");
}
