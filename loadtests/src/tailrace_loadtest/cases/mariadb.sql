-- Values of every type that MariaDB has, and what the writes need.
CREATE TABLE edge (
    id int PRIMARY KEY, t1 tinyint, t1u tinyint unsigned, t2 smallint, t2u smallint unsigned, t3 mediumint, t3u mediumint unsigned zerofill, t4 int, t4u int unsigned,
    t8 bigint, t8u bigint unsigned, flag boolean, b1 bit(1), b9 bit(9), b64 bit(64), num decimal(65, 30), money decimal(12, 2), f4 float, f8 double,
    d date, tm time(6), dt datetime(6), ts timestamp(6) NULL, y year, ch char(5), vc varchar(40), txt mediumtext, lat varchar(20) CHARACTER SET latin1,
    bin binary(4), vbin varbinary(20), blb longblob, en enum('red', 'green', 'blue green'), st set('a', 'b', 'c d'), js json, pt point, ip inet6, uid uuid);
INSERT INTO edge (id) VALUES (1);
INSERT INTO edge VALUES
    (2, -128, 0, -32768, 0, -8388608, 0, -2147483648, 0, -9223372036854775808, 0, 0, b'0', b'0', b'0', -99999999999999999999999999999999999.999999999999999999999999999999,
     -9999999999.99, -3.402823466e38, -1.7976931348623157e308, '1000-01-01', '-838:59:59.999999', '1000-01-01 00:00:00', '1970-01-01 00:00:01', 1901, '', '', '', '', '', '', '', 'red', '', '{}', NULL, '::', '00000000-0000-0000-0000-000000000000'),
    (3, 127, 255, 32767, 65535, 8388607, 16777215, 2147483647, 4294967295, 9223372036854775807, 18446744073709551615, 1, b'1', b'111111111', 0xffffffffffffffff,
     99999999999999999999999999999999999.999999999999999999999999999999, 9999999999.99, 3.402823466e38, 1.7976931348623157e308, '9999-12-31', '838:59:59.999999',
     '9999-12-31 23:59:59.999999', '2038-01-19 03:14:07.999999', 2155, 'abcde', 'say "hi", \\ there', repeat('x', 100000), 'café ÿ', 0x01, 0x00ff, 0xdeadbeef, 'blue green', 'a,c d', '[1, 2.50, "é", null]',
     point(1, 2), '2001:db8::1', '123e4567-e89b-12d3-a456-426614174000'),
    (4, 0, 1, 0, 1, 0, 7, 0, 1, 0, 9223372036854775808, 7, b'1', b'100000001', 1, 0, 0, 0, 0, '0000-00-00', '00:00:00', '0000-00-00 00:00:00', '0000-00-00 00:00:00', 0,
     'é', '𝄞 a,b', 'line\nbreak\r\n\ttab', 'ä', 'abcd', 'text', '', 'green', 'b', '{"a": {"b": [1]}, "a2": "x"}', NULL, '::ffff:10.0.0.1', NULL),
    (5, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1, b'0', b'1', 2, 1.10, 12.50, 1.1, 0.1, '2026-01-31', '09:30:00.5', '2026-01-31 09:30:00.12', '2026-01-31 09:30:00.5', 2026,
     ' a ', 'null', 'true', '"', 'a', 'b', 'c', 'red', 'a,b', '"text"', NULL, NULL, NULL),
    (6, -1, 200, -1, 40000, -1, 1, -1, 3000000000, -1, 1, 0, NULL, NULL, NULL, -0.000000000000000000000000000001, -0.01, 16777216, 1e15, '2024-02-29', '-00:00:01', '2024-02-29 12:00:00',
     '2024-02-29 12:00:00', 1999, 'trail', char(1, 8, 9, 10, 13, 127 USING utf8mb4), '', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
    (7, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 1, b'1', b'10', 3, 100, 100, 1e-5, 1e-5, '2026-12-31', '23:59:59.000001', '2026-12-31 23:59:59', '2026-12-31 23:59:59', 2000,
     'x', 'y', 'z', 'w', 'v', 'u', 't', 'green', 'c d', 'null', NULL, NULL, NULL),
    (8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 1, b'1', b'10', 3, 123456789012345678901234567890, 8, 123456.789, 123456789.12345679, '2026-06-01', '12:00:00', '2026-06-01 12:00:00', NULL, 2026,
     'A', 'ÀÉ', 'ß', 'b', 'v', 'u', 't', 'red', '', '  {"spaced" :  1 }', NULL, NULL, NULL);
CREATE TABLE notes (
    id bigint AUTO_INCREMENT PRIMARY KEY, edge int NOT NULL, author varchar(40) NOT NULL, body varchar(200), UNIQUE (edge, author, body),
    FOREIGN KEY (edge) REFERENCES edge (id), CHECK (body <> 'forbidden'));
CREATE VIEW shown AS SELECT e.id, upper(e.vc) AS loud, e.txt FROM edge e;
