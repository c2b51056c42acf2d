/* C interface of libbased.so: load a model, generate text, score tokens, save and restore states. Plain C99, for programs in C and for
 * other languages' foreign function interfaces.
 *
 * Status. Every function that can fail returns a based_status. Its output arguments are only written if it returns BASED_OK, except where
 * noted. based_last_error() then has the message. No C++ exception leaves the library.
 *
 * Text is UTF-8 with an explicit length in bytes; it may contain NUL bytes. File names and names of options end with a NUL. Token ids are
 * int64_t.
 *
 * Memory. Handles (based_model, based_state, based_generation) belong to the caller, who frees each with its own function. A state or a
 * generation keeps its model in memory, so the handles may be freed in any order. Arrays that a function allocates are freed by
 * based_free(). Functions whose result is const return memory of the handle.
 *
 * Threads. All functions may be called from any thread. Calls that use the same model run one after the other, those of its states and
 * generations included; calls for different models run at the same time. A handle must not be freed while another thread uses it. CPU
 * arithmetic uses all cores by OpenMP, so one thread per model is enough.
 *
 * Growth. Structs that begin with `size` may get more members at their end. Set `size` to sizeof of the struct, or call its _init function,
 * so that a program that was compiled earlier keeps working. Other structs do not change. BASED_ABI_VERSION changes if that rule is broken.
 */
#ifndef BASED_C_BASED_H
#define BASED_C_BASED_H

#include <stddef.h>
#include <stdint.h>

#define BASED_ABI_VERSION 1

#if defined(__GNUC__)
#define BASED_API __attribute__((visibility("default")))
#else
#define BASED_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Equal to the exit statuses of the program `based`. */
typedef int based_status;
#define BASED_OK 0
#define BASED_FAILED 1 /* a file, the memory, the device, the model; or a progress callback that stopped the call */
#define BASED_USAGE 2  /* wrong arguments, found before any work began */

/* The message of this thread's last call that failed. It stays valid until this thread's next call that fails. */
BASED_API const char* based_last_error(void);

BASED_API int based_abi_version(void);           /* BASED_ABI_VERSION of the library */
BASED_API const char* based_torch_version(void); /* the LibTorch that the library was built with, for example "2.11.0" */

/* Frees an array that this library allocated. NULL is allowed, as in all functions that free. */
BASED_API void based_free(void* memory);

/* Called from time to time during a long call with the number of tokens read so far. The call stops, and fails, if the result is not 0. A
 * callback must not use the model of the call. */
typedef int (*based_progress)(void* context, int64_t tokens);

/* ---- Models ---- */

typedef struct based_model based_model;

typedef struct based_load_options {
  size_t size;
  const char* device; /* "cpu", "cuda" or "cuda:1"; NULL: "cpu" */
  const char* dtype;  /* "fp32", "bf16" or "fp64"; NULL: the type of the stored weights, fp32 for fp16 */
  /* Not 0: tokens, log-probabilities and states depend, to the bit, only on a sequence's tokens and the model, not on other sequences nor
   * on how the text was divided among calls (docs/files.md, "A text in pieces, to the bit"). Slower. */
  int32_t invariant;
} based_load_options;

BASED_API void based_load_options_init(based_load_options* options);

/* Loads a model's folder (the --out of `based train` or `based convert`). `options` may be NULL. */
BASED_API based_status based_model_load(const char* folder, const based_load_options* options, based_model** model);
BASED_API void based_model_free(based_model* model);

typedef struct based_model_info {
  size_t size;         /* set by the caller */
  int64_t vocab_size;  /* token ids are 0 to vocab_size - 1 */
  int64_t parameters;  /* the number of weights */
  int64_t state_bytes; /* of one sequence; without the keys and values that grow with it */
  int32_t state_grows; /* 1: the state grows with the sequence (full attention) */
  int64_t end_of_text; /* the token that ends a text; -1: none */
  int64_t max_tokens;  /* the longest sequence, where positions are learned; 0: no limit */
  const char* hash;    /* 32 hex digits: config, weights and tokenizer. State files record it */
  const char* device;  /* "cpu" or "cuda:0" */
  const char* dtype;   /* "fp32", "bf16" or "fp64" */
} based_model_info;

BASED_API based_status based_model_describe(const based_model* model, based_model_info* info);

/* Token ids of a text: *ids [*count]. */
BASED_API based_status based_encode(const based_model* model, const char* text, size_t bytes, int64_t** ids, size_t* count);
/* Text of token ids: *text [*bytes], and a NUL after it. Bytes that are not UTF-8 by themselves are kept. */
BASED_API based_status based_decode(const based_model* model, const int64_t* ids, size_t count, char** text, size_t* bytes);

/* ---- States ----
 *
 * A state is what a model remembers of a sequence, and the sequence's token ids. It never changes: reading more text makes a new state. */

typedef struct based_state based_state;

/* A sequence: the tokens of `state`, then those of `text`, then `ids`. Each part may be absent (NULL or 0), but not all of them. */
typedef struct based_prompt {
  const based_state* state;
  const char* text;
  size_t bytes;
  const int64_t* ids;
  size_t count;
} based_prompt;

/* Reads a prompt, and makes the state after it. `progress` may be NULL. */
BASED_API based_status based_state_read(based_model* model, const based_prompt* prompt, based_progress progress, void* context,
                                        based_state** state);
/* A second handle of the same state, in the same memory. Both continue independently. */
BASED_API based_status based_state_fork(const based_state* state, based_state** fork);
BASED_API void based_state_free(based_state* state);

/* State files, which all programs of this project exchange (`based state save`, `based generate --state`, the server). A file only loads
 * into the model that made it. Saving is atomic, and fails if the state or the logits after it are not finite. */
BASED_API based_status based_state_save(const based_state* state, const char* path);
BASED_API based_status based_state_load(based_model* model, const char* path, based_state** state);
/* The bytes of that file: *data [*bytes]. */
BASED_API based_status based_state_bytes(const based_state* state, unsigned char** data, size_t* bytes);
BASED_API based_status based_state_from_bytes(based_model* model, const void* data, size_t bytes, based_state** state);

/* The token ids of the sequence: *ids [*count], memory of the state. */
BASED_API based_status based_state_ids(const based_state* state, const int64_t** ids, size_t* count);

/* ---- Generation ----
 *
 * A generation continues one or several prompts at the same time. based_generation_next() makes one step and returns its results one by
 * one, so that the caller decides after each step whether to continue. Prompts that find no free slot wait for one. */

typedef struct based_generation based_generation;

typedef struct based_generation_options {
  size_t size;
  int64_t max_tokens;        /* tokens to generate for each prompt; default 128 */
  double temperature;        /* default 1; 0: always the most likely token */
  int64_t top_k;             /* keep the k most likely tokens; default 0: all */
  double top_p;              /* keep the most likely tokens up to this total probability; default 1 */
  double min_p;              /* keep tokens with at least this share of the most likely one's probability; default 0 */
  double repetition_penalty; /* above 1: tokens of prompt and text are repeated less often; default 1 */
  double presence_penalty;   /* subtracted from the logits of generated tokens; default 0 */
  double frequency_penalty;  /* subtracted from a token's logit each time it has been generated; default 0 */
  int64_t seed;              /* the prompt number i is sampled with seed + i; equal seeds and texts give equal tokens; default 0 */
  const char* const* stops;  /* [stop_count] strings; a text ends before the first of them */
  size_t stop_count;
  const int64_t* bias_ids;   /* [bias_count]: bias_values[i], -100 to 100, is added to the logit of the token bias_ids[i] */
  const double* bias_values; /* [bias_count] */
  size_t bias_count;
  int64_t slots;             /* prompts that are continued at the same time; default 0: 8 on a CPU, 128 on a GPU, at most all prompts */
  int64_t cache_tokens;      /* for states that grow: tokens of all slots together; 0: as many as they may need */
  int32_t log_probabilities; /* not 0: keep the log-probability of each token */
  int32_t keep_states;       /* not 0: based_generation_state() also works after a prompt's end. Costs a state for each prompt */
} based_generation_options;

BASED_API void based_generation_options_init(based_generation_options* options);

/* Starts a generation for `count` prompts. `options` may be NULL. Strings and arrays are copied. Nothing is computed yet. */
BASED_API based_status based_generation_start(based_model* model, const based_prompt* prompts, size_t count,
                                              const based_generation_options* options, based_generation** generation);

typedef enum based_event_kind {
  BASED_EVENT_STEP = 0, /* a step was made, and no text is complete yet: call again */
  BASED_EVENT_TEXT = 1, /* `text` follows the earlier text of `prompt` */
  BASED_EVENT_END = 2,  /* `prompt` has ended: based_generation_describe() has its result */
  BASED_EVENT_DONE = 3  /* all prompts have ended */
} based_event_kind;

typedef struct based_event {
  int32_t kind;     /* based_event_kind */
  size_t prompt;    /* the index of the prompt; 0 for STEP and DONE */
  const char* text; /* whole characters, which later tokens do not change, with a NUL after them; valid until the next call */
  size_t bytes;
} based_event;

/* Returns the next event. It makes at most one step: it reads a piece of the prompts (1024 tokens on a CPU, 8192 on a GPU) and samples one
 * token for each prompt that has been read. */
BASED_API based_status based_generation_next(based_generation* generation, based_event* event);
/* Ends a prompt, with the reason "interrupted", or all of them, if `prompt` is SIZE_MAX. The events of the rest of the text and of the end
 * follow. From another thread it takes effect after the step in progress. */
BASED_API based_status based_generation_stop(based_generation* generation, size_t prompt);

/* The result of a prompt so far; arrays are memory of the generation and valid until its next call. */
typedef struct based_generation_result {
  size_t size;               /* set by the caller */
  const char* finish_reason; /* length, end_of_text, stop, cache_full, positions, not_finite, interrupted; NULL: it has not ended */
  int64_t prompt_tokens;     /* tokens before the first sampled one, those of the prompt's state included */
  const char* text;          /* the whole text; NULL before the end */
  size_t bytes;
  const int64_t* ids;             /* [count] sampled tokens, also the one that ended the text; NULL before the end */
  const float* log_probabilities; /* [count], in nats, under the model's softmax; NULL without based_generation_options.log_probabilities */
  size_t count;
} based_generation_result;

BASED_API based_status based_generation_describe(based_generation* generation, size_t prompt, based_generation_result* result);
/* The state of the prompt and all sampled tokens so far, those of a stop string and the end of text included. */
BASED_API based_status based_generation_state(based_generation* generation, size_t prompt, based_state** state);
BASED_API void based_generation_free(based_generation* generation);

/* ---- Scores ---- */

typedef struct based_score_request {
  const int64_t* context; /* [context_count], at least one token: the first token of a text has no probability */
  size_t context_count;
  const int64_t* continuation; /* [continuation_count], at least one token */
  size_t continuation_count;
  float* log_probabilities; /* result [continuation_count], in nats: log p(token | all tokens before it); NULL: not wanted */
  double log_likelihood;    /* result: their sum */
  int32_t greedy;           /* result: 1 if each token of the continuation is the most likely one */
} based_score_request;

/* Scores all requests, several at a time; prefixes that contexts share are read once. `progress` may be NULL. If the call fails, the
 * results are undefined. */
BASED_API based_status based_score(based_model* model, based_score_request* requests, size_t count, based_progress progress, void* context);

#ifdef __cplusplus
}
#endif

#endif
