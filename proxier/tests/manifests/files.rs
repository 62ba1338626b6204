//! Files, directories, and what stands in their place.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use proxier::manifests::{self, Error};

use super::{objects, options, problems};

fn service(name: &str) -> String {
    format!("apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\n")
}

/// The names of the Services, and what was wrong; the directory is called `D` in it.
fn load(directory: &Path) -> (Vec<String>, Vec<String>) {
    let loaded = manifests::load(directory, &options()).unwrap();
    let names = objects(&loaded)
        .0
        .iter()
        .map(|service| service.name.to_string())
        .collect();
    let directory = directory.to_str().unwrap();
    let problems = problems(&loaded);
    (
        names,
        problems
            .iter()
            .map(|problem| problem.replace(directory, "D"))
            .collect(),
    )
}

#[test]
fn a_directory_is_read_in_order_and_not_descended_into() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::write(at("b.yaml"), service("b")).unwrap();
    fs::write(at("a.yml"), service("a")).unwrap();
    fs::write(
        at("c.json"),
        r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "b"}}"#,
    )
    .unwrap();
    fs::write(at("notes.txt"), "not read").unwrap();
    fs::write(at(".hidden.yaml"), "not: read: either").unwrap();
    fs::create_dir(at("deeper.yaml")).unwrap();
    fs::write(at("deeper.yaml/d.yaml"), service("d")).unwrap();
    fs::write(at("latin.yaml"), b"# caf\xe9\n").unwrap();
    symlink("nowhere", at("gone.yaml")).unwrap();
    let (names, problems) = load(directory.path());
    assert_eq!(names, ["default/a", "default/b"]);
    assert_eq!(
        problems,
        [
            "D/gone.yaml: no such file or directory (os error 2); the file is skipped",
            "D/latin.yaml: not UTF-8 at byte 5; the file is skipped",
            "D/c.json:1: Service default/b: the object was already given; this later one counts",
        ]
    );
}

#[test]
fn a_mounted_config_map_is_read_once() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::create_dir(at("..2026_11_21")).unwrap();
    fs::write(at("..2026_11_21/web.yaml"), service("web")).unwrap();
    symlink("..2026_11_21", at("..data")).unwrap();
    symlink("..data/web.yaml", at("web.yaml")).unwrap();
    assert_eq!(
        load(directory.path()),
        (vec!["default/web".to_owned()], Vec::new())
    );
}

#[test]
fn what_cannot_be_read_at_all_is_an_error_in_one_line() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("missing.yaml");
    let error = manifests::load(&missing, &options()).unwrap_err();
    assert!(matches!(error, Error::Unreadable { .. }), "{error:?}");
    let line = format!("{:#}", anyhow::Error::new(error));
    let wanted = format!(
        "reading {}: No such file or directory (os error 2)",
        missing.display()
    );
    assert_eq!(line, wanted);
    let error = manifests::load(directory.path(), &options()).unwrap_err();
    assert!(matches!(error, Error::NoManifests { .. }), "{error:?}");
}

#[test]
fn the_examples_load_without_a_problem() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/examples");
    let loaded = manifests::load(&examples, &options()).unwrap();
    assert_eq!(problems(&loaded), [""; 0]);
    let (services, slices, node) = objects(&loaded);
    assert!(services.len() >= 4 && slices.len() >= 4 && node.is_some());
}
