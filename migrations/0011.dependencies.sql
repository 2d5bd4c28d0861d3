-- What a definition depends on is stored in another form. Until `syncer apply` has derived it again, nothing is compared.

UPDATE syncer.document SET definition = jsonb_set(
    jsonb_set(definition, '{dependencies,shapes}', '{}'),
    '{dependencies,fields}',
    coalesce((SELECT jsonb_agg(CASE jsonb_typeof(f.value) WHEN 'object' THEN f.value -> 'name' ELSE f.value END ORDER BY f.place)
              FROM jsonb_array_elements(definition -> 'dependencies' -> 'fields') WITH ORDINALITY AS f (value, place)), '[]')
);
