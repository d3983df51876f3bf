"""Every known class of vulnerability of such servers, and the tests that stand for it."""

from __future__ import annotations

import importlib

import pytest

CLASSES = {
    "unbounded n and best_of": ("requests", "n_and_best_of_are_bounded"),
    "sequences of one body": ("requests", "all_sequences_of_a_body_count_as_requests_in_flight"),
    "logprob amplification": ("requests", "log_probabilities_of_a_text_are_bounded_with_those_of_its_prompt"),
    "alternatives": ("requests", "alternatives_of_a_token_are_bounded"),
    "empty prompt": ("requests", "an_empty_prompt_is_refused"),
    "negative and huge integers": ("requests", "negative_and_huge_integers_are_refused"),
    "NaN": ("requests", "numbers_that_are_none_are_refused"),
    "extreme sampling values": ("requests", "extreme_sampling_values_are_served_or_refused_and_never_fail"),
    "out-of-vocabulary ids and biases": ("requests", "ids_and_biases_out_of_the_vocabulary_are_refused"),
    "prompt length": ("requests", "a_prompt_that_can_not_fit_is_refused_before_it_is_tokenised"),
    "huge bodies": ("bodies", "a_body_without_an_end_is_refused_as_it_comes_and_then_cut_off"),
    "compressed bodies": ("bodies", "a_compressed_body_is_not_unpacked"),
    "tokenising that blocks the loop": ("bodies", "a_text_that_takes_long_to_cut_holds_up_nobody"),
    "huge headers": ("bodies", "headers_beyond_their_bytes_are_refused"),
    "many headers": ("bodies", "headers_beyond_their_number_are_refused"),
    "deep JSON": ("bodies", "deep_json_is_refused"),
    "recursive and exploding grammars": ("grammars", "recursive_and_exploding_schemas_are_refused_or_served"),
    "costly regexes": ("grammars", "costly_expressions_are_refused_or_served"),
    "grammar cache flooding": ("grammars", "a_flood_of_grammars_is_kept_to_the_size_of_the_cache"),
    "remote $ref": ("grammars", "a_remote_reference_is_never_followed"),
    "template injection": ("templates", "what_clients_write_is_text_to_the_template"),
    "client-supplied templates": ("templates", "a_template_of_the_clients_is_not_used"),
    "hostile templates": ("templates", "a_template_that_explodes_is_stopped_in_its_time_and_within_memory"),
    "template escape": ("templates", "a_template_reaches_nothing_but_its_data"),
    "images for the blind": ("outside", "a_model_that_does_not_see_has_no_image_fetched"),
    "SSRF by image URL": ("images", "an_address_inside_is_never_connected_to"),
    "SSRF by redirect": ("images", "a_redirect_inside_is_never_followed"),
    "DNS rebinding": ("images", "a_name_that_changes_its_mind_leads_nowhere"),
    "image size, slow images": ("images", "an_image_without_an_end_or_that_drips_is_cut"),
    "image count": ("images", "images_without_number_are_refused_before_any_is_fetched"),
    "memory of images": ("images", "bodies_with_images_hold_no_more_than_they_may_together"),
    "images in logs": ("images", "nothing_of_an_image_is_logged"),
    "path traversal by names": ("outside", "a_model_or_an_adapter_is_never_looked_for_as_a_file"),
    "addresses and paths in errors": ("outside", "an_error_tells_nothing_of_the_insides"),
    "prompts on standard error": ("panics_in_logs", "no_process_of_a_server_tells_prompts"),
    "timing of key comparison": ("keys", "keys_are_compared_by_digests_and_in_constant_time"),
    "routes outside the key": ("keys", "every_route_asks_for_the_key_but_those_that_are_meant_to_be_open"),
    "prefix-cache timing": ("keys", "the_prefix_cache_tells_nothing_of_other_keys"),
    "deserialisation on sockets": ("sockets", "a_pickle_on_the_socket_is_a_fault"),
    "pickled weights": ("model_files", "pickled_weights_are_never_read"),
    "remote code": ("model_files", "a_model_with_code_runs_none_of_it"),
    "hostile weight headers": ("model_files", "a_header_that_is_not_true_of_its_file_is_refused"),
    "hostile quantised weights": ("quantised_weights", "what_does_not_fit_together_is_refused"),
    "hostile configurations": ("model_files", "a_configuration_beyond_reason_is_refused"),
    "paths in weight indexes": ("model_files", "an_index_that_leads_out_of_the_directory_is_refused"),
    "slowloris, headers": ("connections", "headers_that_drip_are_given_up"),
    "slowloris, bodies": ("connections", "a_body_that_drips_is_given_up"),
    "silent connections": ("connections", "a_connection_that_never_speaks_is_closed"),
    "slow reader": ("connections", "a_stream_that_is_not_read_is_ended_and_its_work_aborted"),
    "outbox": ("connections", "what_waits_for_a_slow_reader_is_bounded"),
    "connections": ("connections", "connections_beyond_their_number_are_told_so_and_requests_go_on"),
    "disconnect storms": ("connections", "a_storm_of_clients_that_leave_leaves_nothing_behind"),
}

# The fake engine has no sampler, and a client that waits for a minute bounds no grammar: these tests do
BELOW = {
    "extreme sampling values": (
        "unit.inference.sampling.test_sampler_extremes",
        "extreme_values_choose_a_token_and_say_how_likely_it_is",
    ),
    "recursive and exploding grammars": (
        "structured.test_hostile",
        "a_hostile_grammar_is_refused_or_ready_within_its_limit",
    ),
    "costly regexes": ("structured.test_hostile", "a_hostile_grammar_is_refused_or_ready_within_its_limit"),
}


@pytest.mark.parametrize("name", CLASSES)
def test_a_known_class_has_its_test(name: str) -> None:
    module, test = CLASSES[name]
    assert callable(getattr(importlib.import_module(f"tests.security.test_{module}"), f"test_{test}"))


@pytest.mark.parametrize("name", BELOW)
def test_a_class_that_lies_below_http_has_its_test_there(name: str) -> None:
    assert name in CLASSES
    module, test = BELOW[name]
    assert callable(getattr(importlib.import_module(f"tests.{module}"), f"test_{test}"))
