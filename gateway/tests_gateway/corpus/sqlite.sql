-- The corpus on SQLite. Masked for its role: customers.email, .salary, .ssn. Not allowed: vault and what hangs on it.
CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT NOT NULL, email TEXT NOT NULL, salary INTEGER NOT NULL, ssn TEXT NOT NULL, profile TEXT NOT NULL,
    manager INTEGER, email_domain TEXT GENERATED ALWAYS AS (substr(email, instr(email, '@') + 1)));
INSERT INTO customers (id, name, email, salary, ssn, profile, manager) VALUES
    (1, 'Ann', 'ann@a.example', 100, '11', '{"k": 1}', NULL), (2, 'Bob', 'bob@b.example', 200, '22', '{"k": 2}', 1),
    (3, 'Cid', 'cid@c.example', 300, '33', '{"k": 3}', 1), (4, 'Dee', 'dee@d.example', 400, '44', '{"k": 4}', 2);
CREATE TABLE orders (id INTEGER PRIMARY KEY, customer_id INTEGER NOT NULL, amount NUMERIC NOT NULL, note TEXT, salary INTEGER NOT NULL, email TEXT);
INSERT INTO orders WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 12)
    SELECT i, 1 + i % 4, i * 1.5, 'note ' || i, i * 100, 'ann@a.example' FROM n;
CREATE TABLE vault (id INTEGER PRIMARY KEY, pin TEXT NOT NULL, customer_id INTEGER NOT NULL);
INSERT INTO vault VALUES (1, 'pin1', 1), (2, 'pin2', 2), (3, 'pin3', 3);
CREATE VIEW contacts AS SELECT id, name, email, lower(email) AS lowered FROM customers;
CREATE VIEW contacts_again AS SELECT id, name AS title, email AS mail FROM contacts;
CREATE VIEW rich AS SELECT id, name FROM customers WHERE salary > 150;
CREATE VIEW pins AS SELECT customer_id, pin FROM vault;
