-- What the writes of chinook.yaml need beside Chinook's own tables.
CREATE TABLE note (
    note_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    track_id int NOT NULL REFERENCES track (track_id),
    author varchar(40) NOT NULL,
    body text CHECK (body <> 'forbidden'),
    UNIQUE (track_id, author, body)
);
