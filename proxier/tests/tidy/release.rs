//! `deploy/release`, with programs that are only a text: what it makes of them, twice the same.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::repository;

fn output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// Makes a release of the programs in `folder`, with the umask and the time zone of another machine.
fn release(folder: &Path, name: &str, umask: &str, zone: &str) -> String {
    let path = |name: &str| folder.join(name).display().to_string();
    let script = format!(
        "umask {umask}; TZ={zone} CARGO_NET_OFFLINE=true exec '{}' --dirty --programs '{}' --generator '{}' \
         --output '{}'",
        repository().join("deploy/release").display(),
        path("programs"),
        path("generate"),
        path(name),
    );
    output(Command::new("sh").args(["-c", &script]));
    std::fs::read_to_string(folder.join(name).join("SHA256SUMS")).unwrap()
}

/// Returns the content of a blob of an image, after a look at its digest and size.
fn blob(image: &Path, descriptor: &Value) -> Vec<u8> {
    let digest = descriptor["digest"].as_str().unwrap();
    let path = image.join("blobs").join(digest.replace(':', "/"));
    let content = std::fs::read(&path).unwrap();
    assert_eq!(descriptor["size"], content.len());
    let sum = output(Command::new("sha256sum").arg(&path));
    assert_eq!(sum.split(' ').next(), digest.strip_prefix("sha256:"));
    content
}

fn json(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap()
}

#[test]
fn a_release_has_everything_and_is_the_same_twice() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::fs::create_dir(folder.join("programs")).unwrap();
    for processor in ["amd64", "arm64"] {
        let path = folder.join("programs").join(processor);
        std::fs::write(path, format!("program for {processor}")).unwrap();
    }
    let generator = folder.join("generate");
    let text =
        "#!/bin/sh\necho page > \"$1/ipvs-proxier.8\"\necho complete > \"$1/ipvs-proxier.bash\"\n";
    std::fs::write(&generator, text).unwrap();
    std::fs::set_permissions(&generator, std::fs::Permissions::from_mode(0o755)).unwrap();
    let sums = release(folder, "first", "022", "UTC");
    assert_eq!(sums, release(folder, "second", "077", "Asia/Tokyo"));
    let first = folder.join("first");
    output(
        Command::new("sha256sum")
            .args(["--check", "SHA256SUMS"])
            .current_dir(&first),
    );
    let version = env!("CARGO_PKG_VERSION");
    let name = |rest: &str| format!("ipvs-proxier-{version}{rest}");

    let image = folder.join("image");
    std::fs::create_dir(&image).unwrap();
    output(
        Command::new("tar")
            .arg("xf")
            .arg(first.join(name("-image.tar")))
            .current_dir(&image),
    );
    let top = json(&std::fs::read(image.join("index.json")).unwrap());
    let index = json(&blob(&image, &top["manifests"][0]));
    for (entry, processor) in index["manifests"]
        .as_array()
        .unwrap()
        .iter()
        .zip(["amd64", "arm64"])
    {
        assert_eq!(entry["platform"]["architecture"], processor);
        let manifest = json(&blob(&image, entry));
        let config = json(&blob(&image, &manifest["config"]));
        assert_eq!(config["config"]["Entrypoint"][0], "/ipvs-proxier");
        let layer = folder.join("layer.tar.gz");
        std::fs::write(&layer, blob(&image, &manifest["layers"][0])).unwrap();
        let program = output(
            Command::new("tar")
                .arg("xOf")
                .arg(&layer)
                .arg("ipvs-proxier"),
        );
        assert_eq!(program, format!("program for {processor}"));

        let parts =
            std::fs::read(first.join(name(&format!("-linux-{processor}.cdx.json")))).unwrap();
        let parts = json(&parts);
        let components = parts["components"].as_array().unwrap();
        let has = |name: &str| components.iter().any(|part| part["name"] == name);
        assert!(has("rustls") && has("schedulers") && !has("proptest") && !has("lab"));
    }

    let list = |file: &str| output(Command::new("tar").arg("tf").arg(first.join(file)));
    let program = list(&name("-linux-arm64.tar.gz"));
    for part in [
        "/ipvs-proxier\n",
        "/man/ipvs-proxier.8\n",
        "/completions/ipvs-proxier.bash\n",
        "/LICENSE\n",
    ] {
        assert!(program.contains(part), "no {part}: {program}");
    }
    let chart = list(&name(".tgz"));
    assert!(
        chart.contains("ipvs-proxier/Chart.yaml\n") && !chart.contains("/ci/"),
        "{chart}"
    );
    let manifests = list(&name("-kustomize.tar.gz"));
    assert!(
        manifests.contains("deploy/base/kustomization.yaml\n"),
        "{manifests}"
    );
    let licences = std::fs::read_to_string(first.join("LICENSES-of-crates.txt")).unwrap();
    assert!(licences.contains("\nrustls "), "{licences}");
}
