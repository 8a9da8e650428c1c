-- Times are milliseconds since 1970. Ids are never reused, because readers of live updates rely on
-- their order.
CREATE TABLE articles (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    author_id INTEGER NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    slug TEXT NOT NULL UNIQUE,
    title TEXT NOT NULL,
    description TEXT NOT NULL,
    body TEXT NOT NULL,
    -- The number of rows in `favorites`, so that lists need not count them.
    favorites_count INTEGER NOT NULL DEFAULT 0 CHECK (favorites_count >= 0),
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
) STRICT;

CREATE INDEX articles_of_authors ON articles (author_id, id);

CREATE TABLE article_tags (
    article_id INTEGER NOT NULL REFERENCES articles (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    PRIMARY KEY (article_id, name)
) STRICT, WITHOUT ROWID;

CREATE INDEX articles_of_tags ON article_tags (name, article_id);

CREATE TABLE favorites (
    user_id INTEGER NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    article_id INTEGER NOT NULL REFERENCES articles (id) ON DELETE CASCADE,
    PRIMARY KEY (user_id, article_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX favorites_of_articles ON favorites (article_id);
