//! The tables of `proxier/docs/configuration.md`.

use std::path::Path;

use clap::CommandFactory as _;
use proxier::testing::config::{Effect, FIELDS, FLAGS};

fn effect(effect: Effect) -> String {
    match effect {
        Effect::Same => "as in kube-proxy".to_owned(),
        Effect::Differs(how) => format!("differs: {how}"),
        Effect::Nothing(why) => format!("**no effect**: {why}"),
    }
}

/// Returns the table of flags.
fn flags() -> String {
    let mut table = "| flag | default | field | effect here |\n|---|---|---|---|\n".to_owned();
    for flag in &FLAGS {
        let short = flag
            .short
            .map_or_else(String::new, |short| format!("`-{short}`, "));
        let value = match flag.value {
            "" => String::new(),
            value => format!("={value}"),
        };
        let default = match flag.default {
            "" => String::new(),
            default => format!("`{default}`"),
        };
        let field = flag
            .path()
            .map_or_else(String::new, |path| format!("`{path}`"));
        let effect = effect(flag.effect()).replace('|', "\\|");
        let name = flag.name;
        table += &format!("| {short}`--{name}{value}` | {default} | {field} | {effect} |\n");
    }
    table
}

/// Returns the table of fields.
fn fields() -> String {
    let mut table = "| field | flag | effect here |\n|---|---|---|\n".to_owned();
    for field in &FIELDS {
        let flag = FLAGS.iter().find(|flag| flag.path() == Some(field.path));
        let flag = flag.map_or_else(String::new, |flag| format!("`--{}`", flag.name));
        let effect = effect(field.effect);
        table += &format!("| `{}` | {flag} | {effect} |\n", field.path);
    }
    table
}

/// Replaces the text between the markers of `name`.
fn replace(page: &str, name: &str, table: &str) -> String {
    let (start, end) = (
        format!("<!-- {name} -->\n"),
        format!("<!-- end of {name} -->"),
    );
    let (before, rest) = page.split_once(&start).unwrap();
    let (_, after) = rest.split_once(&end).unwrap();
    format!("{before}{start}{table}{end}{after}")
}

#[test]
fn the_documentation_has_each_flag_and_field_with_its_effect() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/configuration.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let expected = replace(&page, "flags", &flags());
    let expected = replace(&expected, "fields", &fields());
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &expected).unwrap();
    }
    assert!(
        page == expected,
        "docs/configuration.md differs from the definitions; run UPDATE_DOCS=1 cargo test -p proxier \
         --test configuration documentation"
    );
}

#[test]
fn the_schema_of_the_chart_has_each_field_of_the_configuration() {
    let schema = include_str!("../../../deploy/chart/values.schema.json");
    let schema: serde_json::Value = serde_json::from_str(schema).unwrap();
    let config = &schema["properties"]["config"];
    let leaves = |value: &serde_json::Value| value.to_string().matches("\"type\":").count();
    for field in &FIELDS {
        let pointer = field.path.replace('.', "/properties/");
        let found = config.pointer(&format!("/properties/{pointer}"));
        assert!(found.is_some_and(|it| leaves(it) <= 2), "{}", field.path);
    }
    let names = |value: &serde_json::Value| -> Vec<String> {
        value.as_object().unwrap().keys().cloned().collect()
    };
    let known = |name: &String| {
        let is_it =
            |field: &proxier::testing::config::Field| field.path.split('.').next() == Some(name);
        ["apiVersion", "kind"].contains(&name.as_str()) || FIELDS.iter().any(is_it)
    };
    let unknown: Vec<String> = names(&config["properties"])
        .into_iter()
        .filter(|name| !known(name))
        .collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

/// The page has the conventions of helm-docs: a row for each comment `# --` of the values, with its text.
#[test]
fn the_page_of_the_chart_describes_each_value() {
    let values = include_str!("../../../deploy/chart/values.yaml");
    let page = include_str!("../../../deploy/chart/README.md");
    let comments = values
        .lines()
        .filter_map(|line| line.trim().strip_prefix("# -- "));
    let rows = page
        .lines()
        .filter(|line| line.starts_with("| ") && line.contains(" | `"));
    assert_eq!(comments.clone().count(), rows.count());
    for comment in comments {
        assert!(page.contains(comment), "no row says: {comment}");
    }
}

#[test]
fn the_reference_has_each_flag_that_kube_proxy_does_not_have() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(folder.join("README.md")).unwrap();
    let (_, page) = page.split_once("\n## Flags\n").unwrap();
    let (page, _) = page.split_once("\n## ").unwrap();
    let mut missing = Vec::new();
    for command in proxier::Cli::command().get_subcommands() {
        for name in command.get_arguments().filter_map(clap::Arg::get_long) {
            let is_theirs = FLAGS.iter().any(|flag| flag.name == name);
            let row = format!("\n| `--{name}`");
            let is_documented = page.contains(&row);
            if !is_theirs && !is_documented && name != "help" {
                missing.push(format!("{} --{name}", command.get_name()));
            }
        }
    }
    assert!(missing.is_empty(), "{}", missing.join(", "));
}

#[test]
fn completions_and_the_manual_page_have_each_flag() {
    let mut command = proxier::Cli::command();
    let mut completions = Vec::new();
    let shell = clap_complete::Shell::Bash;
    clap_complete::generate(shell, &mut command, "ipvs-proxier", &mut completions);
    let completions = String::from_utf8(completions).unwrap();
    let run = command.find_subcommand("run").unwrap();
    for flag in &FLAGS {
        let is_of_run = |argument: &clap::Arg| argument.get_long() == Some(flag.name);
        assert!(run.get_arguments().any(is_of_run), "{}", flag.name);
    }
    for command in command.get_subcommands() {
        let mut page = Vec::new();
        let man = clap_mangen::Man::new(command.clone());
        man.render(&mut page).unwrap();
        let page = String::from_utf8(page).unwrap().replace("\\-", "-");
        let has_name = |argument: &&clap::Arg| argument.get_long().is_some();
        for argument in command.get_arguments().filter(has_name) {
            let name = format!("--{}", argument.get_long().unwrap());
            assert!(completions.contains(&name), "{name}");
            assert!(argument.is_hide_set() || page.contains(&name), "{name}");
        }
    }
}
