//! Files and directories.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use api_server::Manifest;
use proxier::testing::manifests::{self, Error, Loaded};
use proxier::testing::store::{Snapshot, Touched};
use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::{objects, options, problems};

fn service(name: &str) -> String {
    Manifest::service(name).yaml()
}

/// Returns the names of the Services and the problems, with `D` for the directory.
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
fn a_directory_is_read_in_order_and_without_subdirectories() {
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
    symlink("/dev/null", at("null.yaml")).unwrap();
    // Opening it for reading would wait for a writer.
    mknodat(CWD, at("pipe.yaml"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    let (names, problems) = load(directory.path());
    assert_eq!(names, ["default/a", "default/b"]);
    assert_eq!(
        problems,
        [
            "D/gone.yaml: no such file or directory (os error 2); objects read from this file before stay in use",
            "D/latin.yaml: not UTF-8 at byte 5; objects read from this file before stay in use",
            "D/null.yaml: not a regular file; objects read from this file before stay in use",
            "D/pipe.yaml: not a regular file; objects read from this file before stay in use",
            "D/c.json:1: Service default/b: the object was defined before; this later definition is used",
        ]
    );
}

/// A directory of manifests that is loaded into one snapshot repeatedly.
struct Reloaded {
    directory: tempfile::TempDir,
    snapshot: Snapshot,
}

impl Reloaded {
    fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
            snapshot: Snapshot::default(),
        }
    }

    fn write(&self, file: &str, content: impl AsRef<[u8]>) {
        fs::write(self.directory.path().join(file), content).unwrap();
    }

    /// Loads the directory. Returns whether every object was readable, and the Services of the snapshot.
    fn load(&mut self) -> (bool, Vec<String>) {
        let loaded = manifests::load(self.directory.path(), &options()).unwrap();
        let is_whole = loaded.is_whole;
        for event in loaded.events {
            self.snapshot.apply(event, &mut Touched::none());
        }
        let services = self.snapshot.services();
        let name = |service: &proxier::testing::model::Service| service.name.name().to_owned();
        (is_whole, services.map(name).collect())
    }
}

#[test]
fn an_unreadable_file_keeps_its_last_readable_content() {
    let mut manifests = Reloaded::new();
    manifests.write("a.yaml", service("a"));
    manifests.write("b.yaml", service("b"));
    let both = vec!["a".to_owned(), "b".to_owned()];
    assert_eq!(manifests.load(), (true, both.clone()));
    assert!(manifests.snapshot.is_complete());

    manifests.write("b.yaml", b"# caf\xe9\n");
    assert_eq!(manifests.load(), (false, both.clone()), "not UTF-8");
    manifests.write("b.yaml", "kind: [");
    assert_eq!(manifests.load(), (false, both.clone()), "no YAML");
    manifests.write("b.yaml", Manifest::of_kind("Servise", "b").yaml());
    assert_eq!(manifests.load(), (false, both.clone()), "an unknown kind");
    manifests.write("b.yaml", "");
    assert_eq!(manifests.load(), (false, both.clone()), "empty");
    manifests.write("b.yaml", "\n  \n");
    assert_eq!(manifests.load(), (false, both), "white space");

    // The other file is still applied.
    manifests.write("a.yaml", service("c"));
    let three = ["a", "b", "c"].map(str::to_owned).to_vec();
    assert_eq!(manifests.load(), (false, three));

    manifests.write("b.yaml", service("b"));
    assert_eq!(manifests.load(), (true, vec!["b".into(), "c".into()]));
    manifests.write("b.yaml", "# none at present\n");
    assert_eq!(manifests.load(), (true, vec!["c".into()]));
}

#[test]
fn a_start_with_an_unreadable_file_does_not_complete_the_snapshot() {
    let mut manifests = Reloaded::new();
    manifests.write("a.yaml", service("a"));
    manifests.write("b.yaml", "kind: [");
    assert_eq!(manifests.load(), (false, vec!["a".to_owned()]));
    assert!(!manifests.snapshot.is_complete());
    manifests.write("b.yaml", service("b"));
    assert_eq!(manifests.load(), (true, vec!["a".into(), "b".into()]));
    assert!(manifests.snapshot.is_complete());
}

#[test]
fn only_unreadable_objects_make_a_load_partial() {
    let parse = |text: &str| -> Loaded { manifests::parse(text, "f", &options()) };
    let node = "apiVersion: v1\nkind: Node\nmetadata: {name: node-a}\n";
    let endpoints = "apiVersion: v1\nkind: Endpoints\nmetadata: {name: a}\n";
    for (what, text) in [
        ("a Service twice", service("a").repeat(2)),
        ("Endpoints twice", format!("{endpoints}---\n{endpoints}")),
        (
            "a node address",
            format!("{node}status: {{addresses: [{{type: InternalIP, address: x}}]}}"),
        ),
        (
            "a cluster IP",
            Manifest::service("a").cluster_ip("x").yaml(),
        ),
    ] {
        let loaded = parse(&text);
        assert!(loaded.is_whole, "{what}");
        assert_ne!(problems(&loaded), [""; 0], "{what}");
    }
    for (what, text) in [
        ("broken YAML", "kind: [".to_owned()),
        ("text", "hello".to_owned()),
        ("no kind", "apiVersion: v1".to_owned()),
        (
            "a Node without a name",
            "apiVersion: v1\nkind: Node".to_owned(),
        ),
        ("a Node of the wrong form", format!("{node}status: []")),
        (
            "Endpoints of the wrong form",
            format!("{endpoints}subsets: 5"),
        ),
    ] {
        let loaded = parse(&text);
        assert!(!loaded.is_whole, "{what}");
        assert_ne!(problems(&loaded), [""; 0], "{what}");
    }
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
fn an_unreadable_path_is_an_error_in_one_line() {
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
