-- Every row of the value table (docs/values.md) with its edges, in one table; a column that a row doesn't name is NULL.
CREATE TYPE mood AS ENUM ('sad', 'ok', 'glad "quoted"');
CREATE TYPE point3 AS (x int, y numeric, label text);
CREATE DOMAIN small AS int CHECK (VALUE < 1000);
CREATE TABLE edge (
    id int PRIMARY KEY,
    i2 smallint, i4 int, i8 bigint, dom small,
    num numeric, money_like numeric(12, 2), f4 real, f8 double precision,
    flag boolean,
    txt text, vc varchar(20), ch char(6), nm name, en mood, uid uuid, ip inet, net cidr, mac macaddr,
    r4 int4range, rts tsrange, mr int4multirange,
    d date, tm time, ts timestamp, tz timestamptz, ttz timetz, iv interval,
    bin bytea, j json, jb jsonb, x xml, cash money, b4 bit(4), vb bit varying, o oid, tsv tsvector, comp point3, pt point,
    a_i4 int[], a_i8 bigint[], a_num numeric[], a_f8 double precision[], a_flag boolean[], a_txt text[], a_d date[], a_ts timestamp[], a_tz timestamptz[],
    a_bin bytea[], a_jb jsonb[], a_en mood[], a_uid uuid[], a_box box[], a_comp point3[]
);
SET timezone = 'UTC';
-- Plain values.
INSERT INTO edge (id, i2, i4, i8, dom, num, money_like, f4, f8, flag, txt, vc, ch, nm, en, uid, ip, net, mac, r4, rts, mr, d, tm, ts, tz, ttz, iv, bin, j, jb, x, cash, b4, vb, o, tsv, comp, pt,
    a_i4, a_i8, a_num, a_f8, a_flag, a_txt, a_d, a_ts, a_tz, a_bin, a_jb, a_en, a_uid, a_box, a_comp)
VALUES (1, 1, 2, 3, 4, 1.10, 99.50, 1.5, 2.25, true, 'text', 'varchar', 'char', 'name', 'ok', '00112233-4455-6677-8899-aabbccddeeff', '192.168.0.1/24', '10.0.0.0/8', '08:00:2b:01:02:03',
    '[1,5)', '[2026-01-01,2026-02-01)', '{[1,3),[7,9)}', '2026-01-31', '09:30:00.5', '2026-01-31 09:30:00.123456', '2026-01-31 09:30:00.5+02', '09:30:00+02', '1 year 2 mons 3 days 04:05:06.7',
    '\x00ff10', '{"a": 1}', '{"b": [1, 2]}', '<a>b</a>', '12.34', '1010', '10101', 42, 'a fat cat', '(1,2.50,"la bel")', '(1.5,-2)',
    '{1,2,3}', '{1,-2}', '{1.10,2.0}', '{1.5,1e20}', '{t,f}', '{plain,"with, comma","with \"quote\"",NULL,"NULL",""}', '{2026-01-31,infinity}', '{"2026-01-31 09:30:00"}', '{"2026-01-31 09:30:00+00"}',
    '{"\\x00","\\xff"}', ARRAY['{"a": 1}', '[]']::jsonb[], '{sad,ok}', '{00112233-4455-6677-8899-aabbccddeeff}', '{(1,1),(0,0);(2,2),(1,1)}', '{"(1,2.5,\"a b\")"}');
-- Nothing.
INSERT INTO edge (id) VALUES (2);
-- Greatest.
INSERT INTO edge (id, i2, i4, i8, dom, num, money_like, f4, f8, flag, ip, r4, d, tm, ts, tz, ttz, iv, cash, o, a_i8)
VALUES (3, 32767, 2147483647, 9223372036854775807, 999, 1234567890123456789012345678901234567890.0123456789, 9999999999.99, 3.4028235e38, 1.7976931348623157e308, true, '2001:db8::ffff', '[1,)',
    '9999-12-31', '23:59:59.999999', '9999-12-31 23:59:59.999999', '9999-12-31 23:59:59.999999+00', '23:59:59.999999-15:59', '178000000 years', '92233720368547758.07', 4294967295,
    '{9223372036854775807,-9223372036854775808}');
-- Least.
INSERT INTO edge (id, i2, i4, i8, dom, num, money_like, f4, f8, flag, ip, r4, d, tm, ts, tz, ttz, iv, cash, o)
VALUES (4, -32768, -2147483648, -9223372036854775808, -5, -0.00000000000000000000000000000000000001, -9999999999.99, 1.17549435e-38, 5e-324, false, '0.0.0.0/0', 'empty',
    '0001-01-01', '00:00:00', '0001-01-01 00:00:00', '0001-01-01 00:00:00+00', '00:00:00+15:59', '-178000000 years', '-92233720368547758.08', 0);
-- Not finite.
INSERT INTO edge (id, num, f4, f8, d, ts, tz, rts, a_num, a_f8, a_ts, a_tz)
VALUES (5, 'NaN', 'NaN', 'NaN', 'infinity', 'infinity', 'infinity', '[,infinity)', '{NaN,Infinity,-Infinity,1}', '{NaN,Infinity,-Infinity,-0}', '{infinity,-infinity}', '{infinity,-infinity}'),
    (6, 'Infinity', 'Infinity', 'Infinity', '-infinity', '-infinity', '-infinity', '(-infinity,)', NULL, NULL, NULL, NULL),
    (7, '-Infinity', '-Infinity', '-Infinity', NULL, NULL, NULL, '(,)', NULL, NULL, NULL, NULL);
-- Empty.
INSERT INTO edge (id, num, f8, f4, txt, vc, ch, nm, mr, tm, iv, bin, j, jb, vb, tsv, comp, a_i4, a_txt, a_jb, a_num)
VALUES (8, 0, '-0', '-0', '', '', '', '', '{}', '24:00:00', '0', '', '""', '{}', '', '', '(,,)', '{}', '{}', '{}', '{NULL}');
-- Text that wants care.
INSERT INTO edge (id, txt, vc, ch, nm, en, j, jb, comp, a_txt, a_jb, tsv)
VALUES (9, E'quote " backslash \\ slash / newline \n return \r tab \t bell \x07 del \x7f nel \u0085 ls \u2028', E'a,b"c', 'x  ', 'Ünïcødé', 'glad "quoted"',
    E'{\n  "a" : "line\\nbreak",\r\n  "b": [ 1,\n 2 ]\n}', '{"é": "\u00e9", "n": 1.10, "big": 12345678901234567890123}', ROW(1, NULL, E'a"b\\c,(d)'), ARRAY[E'{}', E'a\\b', E'c"d', ' lead', 'nUlL', E'new\nline'], ARRAY['"x"', '{"k": "a\"b\\c"}']::jsonb[], E'it''s:1A'),
    (10, '𝄞 clef, 👩‍👩‍👧 family, e\u0301 combining, \u200d', '😀', '😀', '😀', NULL, '"\ud83d\ude00"', '"😀"', ROW(1, 1, '😀'), ARRAY['😀', '\u0000 as text'], ARRAY['"😀"']::jsonb[], NULL),
    (11, repeat('long ', 400), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
-- Years that JSON's dates don't have, and zones.
INSERT INTO edge (id, d, ts, tz, a_d, a_ts, a_tz)
VALUES (12, '0044-03-15 BC', '0044-03-15 12:00:00 BC', '0044-03-15 12:00:00+00 BC', '{"0044-03-15 BC"}', '{"0044-03-15 12:00:00 BC"}', '{"0044-03-15 12:00:00+00 BC"}'),
    (13, '12026-01-31', '12026-01-31 09:30:00.1', '12026-01-31 09:30:00.1+00', '{12026-01-31}', '{"12026-01-31 09:30:00.1"}', '{"12026-01-31 09:30:00.1+00"}'),
    (14, '2000-02-29', '2000-02-29 00:00:00.100000', '1900-01-01 00:00:00.000001+05:30', NULL, NULL, NULL),
    (15, '1970-01-01', '1969-12-31 23:59:59.999999', '1969-12-31 23:59:59.999999-12', NULL, NULL, NULL);
-- Floats whose shortest digits are easy to get wrong.
INSERT INTO edge (id, f4, f8, num, iv, tm)
VALUES (16, 0.1, 0.1, 100000000.00000001, '-1 mons +1 day -00:00:01', '09:30'), (17, 1e15, 1e15, 1e3, '1.5 hours', '00:00:00.000001'), (18, 1e-5, 1e-5, 1e-20, '-0.000001 s', '00:00:00.1'),
    (19, 123456.79, 123456789012345.68, 0.10, '1 day', '12:00:00'), (20, 1e20, 1e22, 10.0, '12 months', NULL), (21, 16777217, 9007199254740993, 1.0e-7, '-3 days', NULL);
-- Nested arrays, other bounds, NULLs inside.
INSERT INTO edge (id, a_i4, a_num, a_txt, a_flag, a_f8, a_box, a_comp, a_bin, a_uid, a_en)
VALUES (22, '{{1,2},{3,4}}', '{{1.0},{NULL}}', '{{a,b},{"c,d",NULL}}', '{{t},{f}}', '{{1e-5},{100000}}', '{}', '{NULL}', '{{"\\x"}}', '{}', '{}'),
    (23, '[2:4]={7,8,NULL}', '[-1:0]={1,2}', '[0:1]={x,y}', '{NULL}', '{NULL,NULL}', NULL, NULL, '{NULL}', '{NULL}', '{"glad \"quoted\"",NULL}'),
    (24, '{{{1},{2}},{{3},{4}}}', '{}', '[2:3][5:6]={{a,b},{c,d}}', NULL, NULL, NULL, NULL, NULL, NULL, NULL);
-- What masks make of odd values.
INSERT INTO edge (id, txt, vc, i8, jb, a_txt)
VALUES (25, 'a@b.c', 'ab@b.c', 1, '"ab@example.org"', '{a@b.c}'), (26, 'first@last@x.y', 'no at', -1, '12', '{}'), (27, 'é', 'éé@é.é', 0, 'null', NULL), (28, 'sixsix', 'seven77', 7, '[1]', NULL), (29, '@', 'a@', 8, 'true', NULL);
