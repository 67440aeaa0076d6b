-- Six databases on one MariaDB, as one company would have them: org, crm, orders, inventory, catalog, billing. For {thousands} thousand customers,
-- ten districts a thousand, a warehouse for ten of these; each customer has three orders of five lines. Computed: the same rows each time.
CREATE DATABASE org; CREATE DATABASE crm; CREATE DATABASE orders; CREATE DATABASE inventory; CREATE DATABASE catalog; CREATE DATABASE billing;
CREATE TABLE org.warehouses (id int PRIMARY KEY, name varchar(20) NOT NULL, city varchar(20) NOT NULL, tax decimal(4, 4) NOT NULL);
CREATE TABLE org.districts (id int PRIMARY KEY, warehouse int NOT NULL, name varchar(20) NOT NULL, next_order int NOT NULL, KEY (warehouse));
CREATE TABLE catalog.items (id int PRIMARY KEY, name varchar(24) NOT NULL, price decimal(7, 2) NOT NULL, data varchar(50));
CREATE TABLE inventory.stock (warehouse int, item int, quantity smallint NOT NULL, PRIMARY KEY (warehouse, item));
CREATE TABLE crm.customers (
    id bigint PRIMARY KEY, district int NOT NULL, first_name varchar(16) NOT NULL, last_name varchar(16) NOT NULL, email varchar(60) NOT NULL,
    phone char(16) NOT NULL, credit enum('GC', 'BC') NOT NULL, balance decimal(12, 2) NOT NULL, since datetime NOT NULL, KEY (district, last_name));
CREATE TABLE orders.orders (
    district int, number int, customer bigint NOT NULL, entered datetime NOT NULL, carrier tinyint, line_count tinyint NOT NULL,
    PRIMARY KEY (district, number), UNIQUE (customer, number));
CREATE TABLE orders.order_lines (
    district int, order_number int, number tinyint, item int NOT NULL, quantity smallint NOT NULL, amount decimal(8, 2) NOT NULL, delivered datetime,
    PRIMARY KEY (district, order_number, number));
CREATE TABLE billing.payments (
    id bigint AUTO_INCREMENT PRIMARY KEY, customer bigint NOT NULL, amount decimal(8, 2) NOT NULL, paid datetime NOT NULL,
    reference varchar(40) UNIQUE, KEY (customer));
INSERT INTO org.warehouses SELECT seq, concat('W', seq), elt(1 + seq % 4, 'Oslo', 'Łódź', 'Porto', 'Bern'), seq % 20 / 100 FROM org.seq_1_to_{thousands};
INSERT INTO org.districts SELECT seq, 1 + (seq - 1) DIV 10, concat('D', seq), 301 FROM org.seq_1_to_{thousands}0;
INSERT INTO catalog.items SELECT seq, concat('Item ', seq), 1 + seq % 9900 / 100, if(seq % 10 = 0, 'ORIGINAL', NULL) FROM catalog.seq_1_to_1000;
INSERT INTO inventory.stock SELECT w.id, i.id, 5 + (w.id * 7 + i.id * 13) % 95 FROM org.warehouses w JOIN catalog.items i;
INSERT INTO crm.customers SELECT seq, 1 + (seq - 1) DIV 100, concat('First', seq % 100), concat('Last', seq % 1000),
    concat('c', seq, '@example.com'), concat('+48 555 ', lpad(seq, 8, '0')), if(seq % 10 = 0, 'BC', 'GC'), seq % 5000 - 10.00,
    '2024-01-01' + INTERVAL seq % 700 DAY FROM crm.seq_1_to_{thousands}000;
INSERT INTO orders.orders SELECT c.district, 1 + (c.id - 1) % 100 + 100 * s.seq, c.id, c.since + INTERVAL s.seq DAY, if(s.seq = 2, NULL, 1 + c.id % 10), 5
    FROM crm.customers c JOIN orders.seq_0_to_2 s;
INSERT INTO orders.order_lines SELECT o.district, o.number, s.seq, 1 + (o.customer * 17 + o.number * 5 + s.seq * 211) % 1000, 1 + s.seq, s.seq * 9.99,
    if(o.carrier IS NULL, NULL, o.entered + INTERVAL 2 DAY) FROM orders.orders o JOIN orders.seq_1_to_5 s;
INSERT INTO billing.payments (customer, amount, paid) SELECT id, 10.00, since FROM crm.customers;
ANALYZE TABLE org.districts, inventory.stock, crm.customers, orders.orders, orders.order_lines, billing.payments, catalog.items;
CREATE USER six@'%' IDENTIFIED BY 'six';
GRANT SELECT ON org.* TO six@'%'; GRANT SELECT ON crm.* TO six@'%'; GRANT SELECT ON orders.* TO six@'%'; GRANT SELECT ON inventory.* TO six@'%';
GRANT SELECT ON catalog.* TO six@'%'; GRANT SELECT, INSERT ON billing.* TO six@'%';
