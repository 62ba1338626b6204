//! The page of documentation.

use std::path::Path;
use std::process::Command;

const PAGE: &str = include_str!("../../docs/explain.md");

/// The flags that the page abbreviates.
const FLAGS: &str = "--against empty --manifests proxier/tests/conformance/cluster.yaml --node-name node-a \
                     --cluster-cidr 10.244.0.0/16";

/// Returns the examples whose command begins with `prompt`: the command, and its output.
pub(crate) fn examples(prompt: &str) -> Vec<(&'static str, &'static str)> {
    let blocks = PAGE.split("```text\n").skip(1);
    let blocks = blocks.map(|block| block.split("```").next().unwrap());
    let examples = blocks.filter_map(|block| block.strip_prefix(prompt));
    examples
        .map(|example| example.split_once('\n').unwrap())
        .collect()
}

#[test]
fn the_page_shows_the_output_as_it_is() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let examples = examples("$ ipvs-proxier ");
    assert_eq!(examples.len(), 3);
    for (command, shown) in examples {
        let words = command.strip_suffix("..").unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_ipvs-proxier"))
            .args(words.split_whitespace())
            .args(FLAGS.split_whitespace())
            .current_dir(repository)
            .output()
            .unwrap();
        let printed = String::from_utf8(output.stdout).unwrap();
        assert_eq!(printed, shown, "{command}\n{printed}");
    }
}
