-- What the corpus asks. Masked for the corpus' role: customers.email, .salary, .ssn, .born, .profile. Not allowed: vault and what hangs on it.
CREATE TYPE tier AS ENUM ('basic', 'silver', 'gold');
CREATE DOMAIN positive AS int CHECK (VALUE > 0);
CREATE TABLE customers (
    id int PRIMARY KEY,
    name text NOT NULL,
    email text NOT NULL,
    salary int NOT NULL,
    ssn text NOT NULL,
    born date NOT NULL,
    profile jsonb NOT NULL,
    tier tier NOT NULL DEFAULT 'basic',
    tags text[] NOT NULL DEFAULT '{}',
    manager int,
    email_domain text GENERATED ALWAYS AS (split_part(email, '@', 2)) STORED
);
INSERT INTO customers (id, name, email, salary, ssn, born, profile, tier, tags, manager) VALUES
    (1, 'Ann', 'ann@a.example', 100, '11', '1990-01-01', '{"k": 1}', 'gold', '{x,y}', NULL),
    (2, 'Bob', 'bob@b.example', 200, '22', '1980-02-02', '{"k": 2}', 'basic', '{y}', 1),
    (3, 'Cid', 'cid@c.example', 300, '33', '1970-03-03', '{"k": 3}', 'silver', '{}', 1),
    (4, 'Dee', 'dee@d.example', 400, '44', '1960-04-04', '{"k": 4}', 'basic', '{z}', 2);
CREATE TABLE orders (
    id int PRIMARY KEY,
    customer_id int NOT NULL REFERENCES customers,
    amount numeric(10, 2) NOT NULL,
    placed_at timestamptz NOT NULL,
    note text,
    salary int NOT NULL DEFAULT 200,
    email text
);
INSERT INTO orders SELECT n, 1 + n % 4, n * 1.5, '2026-01-01'::timestamptz + n * interval '1 hour', 'note ' || n, n * 100, 'ann@a.example' FROM generate_series(1, 12) n;
CREATE TABLE vault (id int PRIMARY KEY, pin text NOT NULL, customer_id int NOT NULL);
INSERT INTO vault SELECT n, 'pin' || n, n FROM generate_series(1, 4) n;
CREATE TABLE people (id int PRIMARY KEY, email text NOT NULL, city text NOT NULL);
CREATE TABLE employees (badge int NOT NULL) INHERITS (people);
INSERT INTO people VALUES (1, 'p1@x.example', 'Rome'), (3, 'p3@x.example', 'Bonn');
INSERT INTO employees VALUES (2, 'e2@x.example', 'Oslo', 7);
CREATE TABLE events (id int NOT NULL, day date NOT NULL, payload text NOT NULL, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
CREATE TABLE events_2025 PARTITION OF events FOR VALUES FROM ('2025-01-01') TO ('2026-01-01');
CREATE TABLE events_2026 PARTITION OF events FOR VALUES FROM ('2026-01-01') TO ('2027-01-01');
INSERT INTO events VALUES (1, '2025-05-05', 'secret one'), (2, '2026-05-05', 'secret two');
CREATE VIEW contacts AS SELECT id, name, email, lower(email) AS lowered FROM customers;
CREATE VIEW contacts_again AS SELECT id, name AS title, email AS mail FROM contacts;
CREATE VIEW rich AS SELECT id, name FROM customers WHERE salary > 150;
CREATE VIEW whole AS SELECT c.id, c AS everything FROM customers c;
CREATE VIEW pins AS SELECT customer_id, pin FROM vault;
CREATE MATERIALIZED VIEW directory AS SELECT id, name, email FROM customers;
CREATE FUNCTION peek(int) RETURNS text LANGUAGE sql AS 'SELECT pin FROM vault WHERE id = $1';
CREATE FUNCTION hidden(orders) RETURNS text LANGUAGE sql AS 'SELECT pin FROM vault WHERE id = 1';
CREATE FUNCTION look(text) RETURNS int LANGUAGE sql AS 'SELECT length(pin) + length($1) FROM vault WHERE id = 1';
CREATE FUNCTION spy(int, int) RETURNS bool LANGUAGE sql AS 'SELECT pin > ''pin1'' FROM vault WHERE id = $1';
CREATE OPERATOR <~> (LEFTARG = int, RIGHTARG = int, FUNCTION = spy);
CREATE TYPE handle AS (n int);
CREATE FUNCTION handle_text(handle) RETURNS text LANGUAGE sql AS 'SELECT pin FROM vault WHERE id = ($1).n';
CREATE CAST (handle AS text) WITH FUNCTION handle_text(handle);
CREATE FUNCTION tier_json(tier) RETURNS json LANGUAGE sql AS 'SELECT to_json(pin) FROM vault WHERE id = 1';
CREATE TYPE mood AS ENUM ('ok', 'bad');
CREATE FUNCTION mood_json(mood) RETURNS json LANGUAGE sql AS 'SELECT to_json(pin) FROM vault WHERE id = 1';
CREATE CAST (mood AS json) WITH FUNCTION mood_json(mood);
CREATE AGGREGATE worst(text) (SFUNC = textcat, STYPE = text);
ANALYZE;
