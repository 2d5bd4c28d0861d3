-- A shop of records and a film rental, in the manner of Chinook and Pagila: two namespaces, natural and composite keys,
-- enums, domains, a self-reference, a partitioned table, and the view that lists films.
CREATE SCHEMA music;
CREATE SCHEMA rental;

CREATE DOMAIN music.isrc AS varchar(15) CHECK (VALUE ~ '^[A-Z0-9-]+$');
CREATE DOMAIN rental.year AS integer CHECK (VALUE BETWEEN 1901 AND 2155);
CREATE TYPE rental.rating AS ENUM ('G', 'PG', 'PG-13', 'R', 'NC-17');

CREATE TABLE music.artist (artist_id int PRIMARY KEY, name text NOT NULL);
CREATE TABLE music.album (
    album_id int PRIMARY KEY, title text NOT NULL, artist_id int NOT NULL REFERENCES music.artist, ean varchar(13) UNIQUE
);
CREATE INDEX ON music.album (artist_id);
CREATE TABLE music.track (
    isrc music.isrc PRIMARY KEY, album_id int REFERENCES music.album, name text NOT NULL, composer text,
    milliseconds int NOT NULL, unit_price numeric(10, 2) NOT NULL
);
CREATE INDEX ON music.track (album_id);
CREATE TABLE music.playlist (playlist_id int PRIMARY KEY, name text NOT NULL, parent_id int REFERENCES music.playlist);
CREATE TABLE music.playlist_track (
    playlist_id int REFERENCES music.playlist, isrc music.isrc REFERENCES music.track, PRIMARY KEY (playlist_id, isrc)
);
CREATE INDEX ON music.playlist_track (isrc);
CREATE TABLE music.review (
    review_id int PRIMARY KEY, ean varchar(13) NOT NULL REFERENCES music.album (ean), stars int NOT NULL
);
CREATE INDEX ON music.review (ean);

CREATE TABLE rental.category (category_id int PRIMARY KEY, name text NOT NULL UNIQUE);
CREATE TABLE rental.film (
    film_id int PRIMARY KEY, title text NOT NULL, release_year rental.year, rating rental.rating, length int,
    rental_rate numeric(4, 2) NOT NULL, original_id int REFERENCES rental.film, special_features text[]
);
CREATE TABLE rental.film_category (
    film_id int REFERENCES rental.film, category_id int REFERENCES rental.category, PRIMARY KEY (film_id, category_id)
);
CREATE INDEX ON rental.film_category (category_id);
CREATE TABLE rental.actor (actor_id int PRIMARY KEY, name text NOT NULL);
CREATE TABLE rental.film_actor (
    actor_id int REFERENCES rental.actor, film_id int REFERENCES rental.film, PRIMARY KEY (actor_id, film_id)
);
CREATE INDEX ON rental.film_actor (film_id);
CREATE TABLE rental.store (store_id int PRIMARY KEY, name text NOT NULL, location point);
CREATE TABLE rental.payment (
    payment_id int, paid_on date, film_id int REFERENCES rental.film, amount numeric(6, 2) NOT NULL,
    PRIMARY KEY (payment_id, paid_on)
) PARTITION BY RANGE (paid_on);
CREATE TABLE rental.payment_2025 PARTITION OF rental.payment FOR VALUES FROM ('2025-01-01') TO ('2026-01-01');
CREATE TABLE rental.payment_2026 PARTITION OF rental.payment FOR VALUES FROM ('2026-01-01') TO ('2027-01-01');
CREATE INDEX ON rental.payment (film_id);

CREATE VIEW rental.film_list AS
SELECT film.film_id AS fid, film.title, category.name AS category, film.rental_rate AS price, film.rating,
       string_agg(actor.name, ', ' ORDER BY actor.name) AS actors
FROM rental.category
LEFT JOIN rental.film_category ON category.category_id = film_category.category_id
LEFT JOIN rental.film ON film_category.film_id = film.film_id
JOIN rental.film_actor ON film.film_id = film_actor.film_id
JOIN rental.actor ON film_actor.actor_id = actor.actor_id
GROUP BY film.film_id, film.title, category.name, film.rental_rate, film.rating;

INSERT INTO music.artist SELECT i, 'artist ' || i FROM generate_series(1, 20) AS i;
INSERT INTO music.album SELECT i, 'album ' || i, 1 + i % 20, to_char(i, 'FM4000000000000') FROM generate_series(1, 60) AS i;
INSERT INTO music.track
SELECT 'DE-A00-' || i, 1 + i % 60, 'track ' || i, 'composer ' || i % 7, i * 1000, 0.99 FROM generate_series(1, 600) AS i;
INSERT INTO music.playlist VALUES (1, 'all', NULL), (2, 'some', 1);
INSERT INTO music.playlist_track SELECT 1, isrc FROM music.track UNION ALL SELECT 2, isrc FROM music.track LIMIT 700;
INSERT INTO music.review SELECT i, to_char(1 + i % 60, 'FM4000000000000'), 1 + i % 5 FROM generate_series(1, 200) AS i;
INSERT INTO rental.category SELECT i, 'category ' || i FROM generate_series(1, 16) AS i;
INSERT INTO rental.film
SELECT i, 'film ' || i, 2000 + i % 20, (enum_range(NULL::rental.rating))[1 + i % 5], 90 + i % 50, 2.99, nullif(i % 9, 0),
       ARRAY['Trailers', 'Scenes ' || i % 3]
FROM generate_series(1, 300) AS i;
INSERT INTO rental.film_category SELECT i, 1 + i % 15 FROM generate_series(1, 300) AS i;
INSERT INTO rental.actor SELECT i, 'actor ' || i FROM generate_series(1, 40) AS i;
INSERT INTO rental.film_actor SELECT DISTINCT 1 + (i * 7) % 40, 1 + i % 290 FROM generate_series(1, 1200) AS i;
INSERT INTO rental.store VALUES (1, 'Lethbridge', point(-112.8, 49.7)), (2, 'Woodridge', point(153.1, -27.6)), (3, 'web', NULL);
INSERT INTO rental.payment
SELECT i, date '2025-06-01' + i, 1 + i % 300, 2.99 FROM generate_series(1, 400) AS i;
ANALYZE;
