//! Pictures of users: uploaded with forms, stored in a folder under random names, and served from
//! there.

use crate::auth::{Tokens, Viewer};
use crate::db;
use crate::errors::{Error, internal, invalid};
use crate::users::{Account, UserBody, image_of};
use peregrine::files::Files;
use peregrine::multipart::{MultipartForm, MultipartLimits, UploadedFile};
use peregrine::openapi::{ApiScope, DescribeExt};
use peregrine::prelude::*;
use schemars::JsonSchema;
use serde::Deserialize;
use sqlx::SqlitePool;
use std::fs;
use std::io;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;

/// The path prefix of pictures.
const PREFIX: &str = "/uploads";
/// The first bytes of each type of picture, and its file extension. The type that the client
/// declares is ignored.
const SIGNATURES: [(&[u8], &str); 4] =
    [(b"\x89PNG\r\n\x1a\n", "png"), (b"\xff\xd8\xff", "jpg"), (b"GIF8", "gif"), (b"RIFF", "webp")];

/// The folder of pictures. All workers share it.
#[derive(Clone, Debug)]
pub(crate) struct Uploads {
    folder: Arc<FilePath>,
    bytes_max: u64,
}

impl Uploads {
    /// Creates the folder if it does not exist.
    pub(crate) fn open(folder: &FilePath, bytes_max: u64) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        Ok(Self { folder: folder.into(), bytes_max })
    }

    /// Stores a picture and returns its URL.
    async fn keep(&self, picture: &UploadedFile) -> Result<String, Error> {
        let bytes = picture.bytes().await?;
        let ending =
            ending(&bytes).ok_or_else(|| invalid("image", "must be a PNG, JPEG, GIF or WebP"))?;
        let name = format!("{:032x}.{ending}", random()?);
        picture.save(self.folder.join(&name)).await?;
        Ok(format!("{PREFIX}/{name}"))
    }

    /// Removes the file of an uploaded picture that no user has any more. Call it after the change
    /// is committed. It checks the database because any user may have set any URL.
    pub(crate) async fn clear(&self, pool: &SqlitePool, url: Option<String>) {
        let Some((path, url)) = url.and_then(|url| Some((self.path(&url)?, url))) else { return };
        let has_it = sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM users WHERE image = ?)");
        let removed = match has_it.bind(&url).fetch_one(pool).await {
            Ok(true) => return,
            Ok(false) => peregrine::spawn_blocking(move || fs::remove_file(path)).await,
            Err(error) => Err(io::Error::other(error)),
        };
        // The change is valid even if the file could not be removed.
        if let Err(error) = removed {
            tracing::warn!(%error, "{url} could not be removed");
        }
    }

    /// The file of an uploaded picture; `None` for other URLs, which users may set too.
    fn path(&self, url: &str) -> Option<PathBuf> {
        let name = url.strip_prefix(PREFIX)?.strip_prefix('/')?;
        let (stem, ending) = name.split_once('.')?;
        let is_ours = stem.len() == 32 && stem.bytes().all(|byte| byte.is_ascii_hexdigit());
        (is_ours && SIGNATURES.iter().any(|(_, known)| *known == ending))
            .then(|| self.folder.join(name))
    }

    /// Serves the files. Names are never reused, so clients may cache a file without revalidating
    /// it.
    pub(crate) fn serve(&self, scope: Scope) -> Scope {
        let files = Files::dir(&*self.folder)
            .no_index()
            .cache_control("*", "public, max-age=31536000, immutable");
        // Pages of other origins may embed the pictures.
        scope
            .wrap(SecurityHeaders::new().cross_origin_resource_policy("cross-origin"))
            .subtree("/", files)
    }

    /// The limits of the forms.
    pub(crate) fn limits(&self) -> MultipartLimits {
        MultipartLimits {
            fields_max: 1,
            files_max: 1,
            file_bytes_max: self.bytes_max,
            ..MultipartLimits::DEFAULT
        }
    }
}

fn ending(bytes: &[u8]) -> Option<&'static str> {
    let (_, ending) = SIGNATURES.iter().find(|(start, _)| bytes.starts_with(start))?;
    (*ending != "webp" || bytes.get(8..12) == Some(b"WEBP")).then_some(*ending)
}

fn random() -> Result<u128, Error> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|error| internal("the system provides no random numbers", &error))?;
    Ok(u128::from_le_bytes(bytes))
}

pub(crate) fn routes(api: ApiScope) -> ApiScope {
    // `run_to_completion`: a client that disconnects during the upload leaves no file behind.
    api.put(
        "/",
        change.run_to_completion().named("change_image").describe(|it| {
            it.summary("Sets the user's picture").problem(413, "The picture is too large.")
        }),
    )
}

#[derive(Deserialize, JsonSchema)]
struct Picture {
    /// A PNG, JPEG, GIF or WebP.
    image: UploadedFile,
}

async fn change(
    viewer: Viewer,
    pool: StateRef<SqlitePool>,
    tokens: StateRef<Tokens>,
    uploads: StateRef<Uploads>,
    MultipartForm(Picture { image }): MultipartForm<Picture>,
) -> Result<Json<UserBody>, Error> {
    let url = uploads.keep(&image).await?;
    let changed = set(&pool, viewer.id, &url).await;
    // The previous picture, or the new one if the update failed.
    let unused = changed.as_ref().map_or(Some(url), |(before, _)| before.clone());
    uploads.clear(&pool, unused).await;
    changed?.1.shown(&tokens)
}

/// Sets the user's picture; also returns the previous one.
async fn set(
    pool: &SqlitePool,
    user_id: i64,
    url: &str,
) -> Result<(Option<String>, Account), sqlx::Error> {
    let mut transaction = pool.begin_with(db::WRITE).await?;
    let before = image_of(&mut transaction, user_id).await?;
    let account = sqlx::query_as("UPDATE users SET image = ? WHERE id = ? RETURNING *");
    let account = account.bind(url).bind(user_id).fetch_one(&mut *transaction).await?;
    transaction.commit().await?;
    Ok((before, account))
}
