//! Deserializes a whole form.

use crate::de::{self, FieldValue};
use crate::multipart::Multipart;
use peregrine_web::extract::{FromRequest, field_problem};
use peregrine_web::memory::{MemoryPressure, MemoryReservation, pressure};
use peregrine_web::{BodyError, Problem, Request};
use serde::de::DeserializeOwned;
use std::ops::{Deref, DerefMut};

/// The memory of a field, besides its name and content, while the rest of the form is read.
const FIELD_OVERHEAD_BYTES: usize = size_of::<(String, FieldValue)>();

/// A whole multipart form as a `T`: the last argument of a handler.
///
/// Fields of `T` are matched by name, including serde's `rename`. A field can be text, a number, a
/// `bool` (`true`, `false`, or `on` as sent by a check box), a unit enum, an
/// [`UploadedFile`](crate::UploadedFile), an `Option`, or a `Vec` of these for a name that is sent
/// several times. If nothing was entered or chosen (empty text, or a file without name and
/// content), an `Option` is `None` and a list is empty. Fields that `T` does not have are read and
/// dropped. Nested structs are not supported; `#[serde(flatten)]` works for text and files, but not
/// for numbers, since serde then does not request them as such.
///
/// It fails like [`Multipart`]. In addition, a form that does not match `T` gets a 422 with the
/// `path` of the field.
///
/// ```
/// use peregrine::multipart::{MultipartForm, UploadedFile};
/// use peregrine::prelude::*;
///
/// #[derive(serde::Deserialize)]
/// struct Sighting {
///     bird: String,
///     count: Option<u32>,
///     photo: UploadedFile,
/// }
///
/// async fn report(MultipartForm(sighting): MultipartForm<Sighting>) -> String {
///     let Sighting { bird, count, photo } = sighting;
///     format!("{} of {bird}, {} bytes of photo", count.unwrap_or(1), photo.len())
/// }
///
/// let client = App::new().post("/sightings", report).test();
/// let form = "--b\r\nContent-Disposition: form-data; name=\"bird\"\r\n\r\nlanner\r\n\
///             --b\r\nContent-Disposition: form-data; name=\"photo\"; filename=\"a.jpg\"\r\n\r\n\
///             \u{1}\u{2}\r\n--b--\r\n";
/// let content_type = "multipart/form-data; boundary=b";
/// let request = client.post("/sightings").header("content-type", content_type);
/// assert_eq!(request.body(form).send_blocking().text(), "1 of lanner, 2 bytes of photo");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MultipartForm<T>(pub T);

impl<T: DeserializeOwned> FromRequest for MultipartForm<T> {
    async fn from_request(request: Request) -> Result<Self, Problem> {
        Multipart::from_request(request).await?.into_form().await.map(Self)
    }

    async fn optional_from_request(request: Request) -> Result<Option<Self>, Problem> {
        let Some(form) = Multipart::optional_from_request(request).await? else { return Ok(None) };
        form.into_form().await.map(Self).map(Some)
    }
}

impl Multipart {
    /// Deserializes the rest of the form as a `T`, like [`MultipartForm`]. For handlers that set
    /// limits or watch the progress first.
    ///
    /// # Errors
    /// As for [`MultipartForm`].
    #[doc(alias = "TypedMultipart")]
    pub async fn into_form<T: DeserializeOwned>(mut self) -> Result<T, Problem> {
        let (mut fields, mut reservation) = (Vec::new(), MemoryReservation::empty());
        while let Some(field) = self.next_field().await? {
            let name = field.name().to_owned();
            let value = if field.headers().is_file() {
                FieldValue::File(field.into_file().await?)
            } else {
                FieldValue::Text(field.text().await?)
            };
            let bytes = match &value {
                FieldValue::Text(text) => text.capacity(),
                FieldValue::File(file) => file.as_slice().map_or(0, <[u8]>::len),
            };
            reservation.resize(reservation.size() + FIELD_OVERHEAD_BYTES + name.capacity() + bytes);
            fields.push((name, value));
            if pressure() >= MemoryPressure::Critical {
                return Err(BodyError::Overloaded.into());
            }
        }
        de::from_fields(fields).map_err(|error| {
            let path = error.field.as_deref().unwrap_or(".");
            field_problem(path, &error.reason)
        })
    }
}

impl<T> Deref for MultipartForm<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for MultipartForm<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}
