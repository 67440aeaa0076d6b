-- What the writes of chinook.yaml need beside Chinook's own tables.
CREATE TABLE Note (
    NoteId INTEGER PRIMARY KEY,
    TrackId INTEGER NOT NULL REFERENCES Track (TrackId),
    Author TEXT NOT NULL,
    Body TEXT CHECK (Body <> 'forbidden'),
    UNIQUE (TrackId, Author, Body)
);
