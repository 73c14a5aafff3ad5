/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The JSON of the vectors is machine-written with a fixed set of forms, so this reader accepts just
 * those: {"case": {key: scalar, ..}, "tensors": [{"name", "dtype", "shape", "offset"}, ..]}.
 */
#include "vector_file.h"

#include "support/cmocka_all.h"

static void *read_all(const char *name, const char *suffix, size_t *size) {
  const char *folder = getenv("NSA_TEST_VECTORS");
  char path[1024];
  snprintf(path, sizeof path, "%s/%s.%s", folder ? folder : ".", name, suffix);
  FILE *stream = fopen(path, "rb");
  if (!stream) fail_msg("%s cannot be opened: set NSA_TEST_VECTORS to tests/vectors", path);
  fseek(stream, 0, SEEK_END);
  *size = (size_t)ftell(stream);
  rewind(stream);
  char *bytes = malloc(*size + 1);
  assert_non_null(bytes);
  assert_int_equal(fread(bytes, 1, *size, stream), *size);
  bytes[*size] = '\0';
  fclose(stream);
  return bytes;
}

static void skip_space(const char **at) { *at += strspn(*at, " \t\r\n"); }

/* Whether the next character is `c`; takes it if so. */
static int accept(const char **at, char c) {
  skip_space(at);
  if (**at != c) return 0;
  ++*at;
  return 1;
}

static void expect(const char **at, char c) {
  if (!accept(at, c)) fail_msg("vector file: '%c' expected before \"%.20s\"", c, *at);
}

/* A string, number, true or false as text. */
static void scalar(const char **at, char *out, size_t size) {
  int quoted = accept(at, '"');
  size_t length = strcspn(*at, quoted ? "\"" : ",}] \t\r\n");
  assert_true(length < size);
  memcpy(out, *at, length);
  out[length] = '\0';
  *at += length;
  if (quoted) expect(at, '"');
}

static void key(const char **at, char *out, size_t size) {
  scalar(at, out, size);
  expect(at, ':');
}

static void parse_case(vector_file *file, const char **at) {
  expect(at, '{');
  do {
    assert_true(file->field_count < (int)(sizeof file->fields / sizeof *file->fields));
    vector_field *field = &file->fields[file->field_count++];
    key(at, field->key, sizeof field->key);
    scalar(at, field->value, sizeof field->value);
  } while (accept(at, ','));
  expect(at, '}');
}

static int64_t number(const char **at) {
  char text[32], *end;
  scalar(at, text, sizeof text);
  int64_t value = strtoll(text, &end, 10);
  assert_true(*text && !*end && value >= 0);
  return value;
}

static void parse_shape(nsa_tensor *tensor, const char **at) {
  expect(at, '[');
  do {
    assert_true(tensor->ndim < NSA_MAX_DIMS);
    tensor->shape[tensor->ndim++] = number(at);
  } while (accept(at, ','));
  expect(at, ']');
  int64_t stride = 1;
  for (int i = tensor->ndim - 1; i >= 0; i--) {
    tensor->stride[i] = stride;
    stride *= tensor->shape[i];
  }
}

static void parse_tensor(vector_file *file, const char **at, size_t size) {
  assert_true(file->tensor_count < (int)(sizeof file->tensors / sizeof *file->tensors));
  vector_tensor *entry = &file->tensors[file->tensor_count++];
  int64_t offset = -1;
  expect(at, '{');
  do {
    char name[16], text[16];
    key(at, name, sizeof name);
    if (!strcmp(name, "name")) {
      scalar(at, entry->name, sizeof entry->name);
    } else if (!strcmp(name, "dtype")) {
      scalar(at, text, sizeof text);
      assert_true(!strcmp(text, "f32") || !strcmp(text, "i32"));
      entry->tensor.dtype = text[0] == 'f' ? NSA_F32 : NSA_I32;
    } else if (!strcmp(name, "shape")) {
      parse_shape(&entry->tensor, at);
    } else {
      assert_string_equal(name, "offset");
      offset = number(at);
    }
  } while (accept(at, ','));
  expect(at, '}');
  assert_true(offset >= 0 && entry->tensor.ndim > 0 && entry->tensor.dtype);
  int64_t bytes = 4 * entry->tensor.shape[0] * entry->tensor.stride[0];
  assert_true(offset % 4 == 0 && offset + bytes <= (int64_t)size);
  entry->tensor.data = (char *)file->data + offset;
}

void vector_file_read(vector_file *file, const char *name) {
  size_t size;
  memset(file, 0, sizeof *file);
  char *json = read_all(name, "json", &size), text[16];
  file->data = read_all(name, "bin", &size);
  const char *at = json;
  expect(&at, '{');
  key(&at, text, sizeof text);
  assert_string_equal(text, "case");
  parse_case(file, &at);
  expect(&at, ',');
  key(&at, text, sizeof text);
  assert_string_equal(text, "tensors");
  expect(&at, '[');
  do parse_tensor(file, &at, size);
  while (accept(&at, ','));
  expect(&at, ']');
  expect(&at, '}');
  skip_space(&at);
  assert_int_equal(*at, '\0');
  free(json);
}

void vector_file_free(vector_file *file) { free(file->data); }

const char *vector_file_text(const vector_file *file, const char *name, const char *absent) {
  for (int i = 0; i < file->field_count; i++)
    if (!strcmp(file->fields[i].key, name)) return file->fields[i].value;
  return absent;
}

double vector_file_number(const vector_file *file, const char *name, double absent) {
  const char *text = vector_file_text(file, name, NULL);
  if (!text) return absent;
  char *end;
  double value = strtod(text, &end);
  assert_true(*text && !*end);
  return value;
}

nsa_tensor vector_file_find(const vector_file *file, const char *name) {
  for (int i = 0; i < file->tensor_count; i++)
    if (!strcmp(file->tensors[i].name, name)) return file->tensors[i].tensor;
  return (nsa_tensor){ 0 };
}

nsa_tensor vector_file_packed(const vector_file *file, const char *name) {
  nsa_tensor tensor = vector_file_find(file, name);
  if (!tensor.data) return tensor;
  assert_true(tensor.ndim > 2);
  tensor.shape[1] *= tensor.shape[0];
  tensor.ndim--;
  memmove(tensor.shape, tensor.shape + 1, sizeof tensor.shape - sizeof *tensor.shape);
  memmove(tensor.stride, tensor.stride + 1, sizeof tensor.stride - sizeof *tensor.stride);
  return tensor;
}
