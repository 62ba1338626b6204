//! The encoding of the API server's lists and watches.

use super::ClientConnectionSection;
use super::origin::Origins;
use crate::sources::watch::Encoding;

impl ClientConnectionSection {
    /// Returns the encoding that responses should have; JSON if no known one is named.
    pub(super) fn encoding(&self) -> Encoding {
        let (_, types) = self.accepted();
        Encoding::of_media_types(types).unwrap_or(Encoding::Json)
    }

    /// Returns a line about accepted types of which none is known.
    pub(super) fn encoding_notice(&self, origins: &Origins) -> Option<String> {
        let (path, types) = self.accepted();
        let is_known = types.is_empty() || Encoding::of_media_types(types).is_some();
        (!is_known).then(|| {
            let name = origins.name(path);
            format!("{name}: {types:?} names neither JSON nor protobuf; JSON is used")
        })
    }

    /// Returns the field that names the accepted media types, and its value. As in client-go, the type of
    /// requests counts if no list is given.
    fn accepted(&self) -> (&'static str, &str) {
        match &*self.accept_content_types {
            "" => ("clientConnection.contentType", &self.content_type),
            list => ("clientConnection.acceptContentTypes", list),
        }
    }
}
