/* Continues a text in plain C, and saves the state after it:
 *
 *   generate MODEL STATE [TEXT]
 *
 * MODEL is a model's folder. With TEXT, the text is read and continued; without it, the program continues from the file STATE, which an
 * earlier call (or `based generate --save-state`) has written. The state after the new text replaces STATE. Standard output gets the new
 * text, standard error the log-likelihood of TEXT.
 */
#include <based/c/based.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ends the program with the exit status of a failed call. */
static void check(based_status status) {
  if (status == BASED_OK) return;
  fprintf(stderr, "generate: %s\n", based_last_error());
  exit(status);
}

/* Prints log p(text without its first token | its first token). */
static void print_score(based_model* model, const char* text) {
  int64_t* ids = NULL;
  size_t count = 0;
  based_score_request request = {0};
  check(based_encode(model, text, strlen(text), &ids, &count));
  if (count > 1) {
    request.context = ids;
    request.context_count = 1;
    request.continuation = ids + 1;
    request.continuation_count = count - 1;
    check(based_score(model, &request, 1, NULL, NULL));
    fprintf(stderr, "log-likelihood %.6f of %lu tokens\n", request.log_likelihood, (unsigned long)(count - 1));
  }
  based_free(ids);
}

int main(int argc, char** argv) {
  based_model* model = NULL;
  based_state *before = NULL, *after = NULL;
  based_generation* generation = NULL;
  based_generation_options options;
  based_prompt prompt = {0};
  based_event event = {0};

  if (argc != 3 && argc != 4) {
    fprintf(stderr, "usage: generate MODEL STATE [TEXT]\n");
    return BASED_USAGE;
  }
  check(based_model_load(argv[1], NULL, &model));
  if (argc == 4) {
    prompt.text = argv[3];
    prompt.bytes = strlen(argv[3]);
    print_score(model, argv[3]);
  } else {
    check(based_state_load(model, argv[2], &before));
    prompt.state = before;
  }

  based_generation_options_init(&options);
  options.max_tokens = 40;
  options.temperature = 0;
  options.keep_states = 1;
  check(based_generation_start(model, &prompt, 1, &options, &generation));
  do {
    check(based_generation_next(generation, &event));
    if (event.kind == BASED_EVENT_TEXT) {
      fwrite(event.text, 1, event.bytes, stdout);
      fflush(stdout);
    }
  } while (event.kind != BASED_EVENT_DONE);
  putchar('\n');

  check(based_generation_state(generation, 0, &after));
  check(based_state_save(after, argv[2]));
  based_generation_free(generation);
  based_state_free(before);
  based_state_free(after);
  based_model_free(model);
  return 0;
}
