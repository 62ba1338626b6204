//! Texts with certificates and keys, from a kubeconfig or the files that it names.

use std::path::Path;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

/// A text in the form PEM.
#[derive(Debug)]
pub(super) struct Pem {
    pub(super) text: Vec<u8>,
    /// The field of the kubeconfig, and the file if the field names one; for messages.
    pub(super) origin: String,
}

impl Pem {
    /// Reads the text of `field`, which is in `data` or in a file. As in client-go, `data` takes precedence, and empty
    /// values are absent.
    ///
    /// A relative name is relative to `folder`, which has the kubeconfig.
    pub(super) fn read(
        field: &str,
        data: Option<&str>,
        file: Option<&str>,
        folder: &Path,
    ) -> Result<Option<Self>, String> {
        if let Some(data) = data.filter(|data| !data.is_empty()) {
            let origin = format!("{field}-data");
            // As Go's decoder, which skips line breaks.
            let base64: String = data.split_ascii_whitespace().collect();
            // The reason could quote a key.
            let text = BASE64_STANDARD.decode(base64);
            let text = text.map_err(|_| format!("{origin}: the value is not base64"))?;
            return Ok(Some(Self { text, origin }));
        }
        let file = file.filter(|file| !file.is_empty());
        file.map(|file| Self::of_file(field, &folder.join(file)))
            .transpose()
    }

    /// Reads a file that `field` names.
    pub(super) fn of_file(field: &str, file: &Path) -> Result<Self, String> {
        let origin = format!("{field} {}", file.display());
        let text = std::fs::read(file).map_err(|error| format!("{origin}: {error}"))?;
        Ok(Self { text, origin })
    }
}
