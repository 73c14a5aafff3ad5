/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The search goes through one list of candidates. `consider` either opens a candidate or, when
 * only locating, checks that its file exists. So opening and locating choose the same file,
 * except in two cases that cannot be predicted: a file that exists but does not load, and a host
 * whose executable has an rpath.
 */
#include "driver/library.h"

#include "driver/ldcache.h"

#include <dlfcn.h>
#include <errno.h>
#include <glob.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct search {
  const nsai_library_spec *spec;
  const nsai_library_query *query;
  nsai_tried *tried;
  nsai_library *out;
  bool load;
} search;

/* Copies what fits. The record shows long paths cut; the search uses them in full. */
static void copy_cut(char *to, size_t size, const char *from) {
  size_t length = strnlen(from, size - 1);
  memcpy(to, from, length);
  to[length] = '\0';
}

void nsai_tried_add(nsai_tried *tried, const char *path, const char *outcome) {
  if (tried->count == NSAI_TRIED_MAX) {
    tried->dropped++;
    return;
  }
  copy_cut(tried->item[tried->count].path, sizeof tried->item[0].path, path);
  copy_cut(tried->item[tried->count].outcome, sizeof tried->item[0].outcome, outcome);
  tried->count++;
}

/* The N of "libx.so.N"; 0 without one. */
static int major_of(const char *name) {
  const char *so = strstr(name, ".so.");
  return so ? atoi(so + 4) : 0;
}

static bool name_allowed(const search *s, const char *name) {
  return s->query->max_major == 0 || major_of(name) <= s->query->max_major;
}

/* Fills `out` from an open handle: the path that the loader used, and the build-id in memory. */
static void describe_handle(nsai_library *out, void *handle, const char *asked) {
  const struct link_map *map = NULL;
  const char *path = asked;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map->l_name[0]) path = map->l_name;
  snprintf(out->path, sizeof out->path, "%s", path);
  if (!nsai_build_id_of_loaded(handle, out->build_id)) out->build_id[0] = '\0';
  out->handle = handle;
}

/* Opens `path`, or when locating checks that it is a file. A name without a slash goes through the
 * loader's search. */
static bool consider(search *s, const char *path) {
  if (strchr(path, '/') && access(path, F_OK) != 0) {
    nsai_tried_add(s->tried, path, strerror(errno));
    return false;
  }
  if (!s->load) {
    struct stat st;
    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode)) {
      nsai_tried_add(s->tried, path, "not a regular file");
      return false;
    }
    s->out->handle = NULL;
    snprintf(s->out->path, sizeof s->out->path, "%s", path);
    if (!nsai_build_id_of_file(path, s->out->build_id)) s->out->build_id[0] = '\0';
    nsai_tried_add(s->tried, path, "found");
    return true;
  }
  void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    const char *why = dlerror();
    nsai_tried_add(s->tried, path, why ? why : "dlopen failed without a reason");
    return false;
  }
  describe_handle(s->out, handle, path);
  nsai_tried_add(s->tried, s->out->path, "opened");
  return true;
}

/* Uses a copy that the host has loaded already. This saves memory, and two NVRTC builds in one
 * process could conflict. */
static bool share_loaded(search *s) {
  for (const char *const *name = s->spec->names; *name; name++) {
    if (!name_allowed(s, *name)) continue;
    void *handle = dlopen(*name, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    if (!handle) continue;
    describe_handle(s->out, handle, *name);
    nsai_tried_add(s->tried, s->out->path, "already loaded in this process");
    if (!s->load) {
      s->out->handle = NULL;
      dlclose(handle);
    }
    return true;
  }
  return false;
}

/* An explicit path: a file, or a folder that contains one of the names. */
static bool consider_given(search *s, const char *given) {
  struct stat st;
  if (stat(given, &st) != 0 || !S_ISDIR(st.st_mode)) return consider(s, given);
  for (const char *const *name = s->spec->names; *name; name++) {
    char path[PATH_MAX];
    int length = snprintf(path, sizeof path, "%s/%s", given, *name);
    if (length < (int)sizeof path && consider(s, path)) return true;
  }
  return false;
}

/* The loader's search: by name when opening; reimplemented here when locating. */
static bool search_loader(search *s) {
  for (const char *const *name = s->spec->names; *name; name++) {
    char path[PATH_MAX];
    if (!name_allowed(s, *name)) continue;
    if (s->load) {
      if (consider(s, *name)) return true;
    } else if (nsai_ldcache_find(*name, path, sizeof path)) {
      if (consider(s, path)) return true;
    } else {
      nsai_tried_add(s->tried, *name, "not in the loader's folders");
    }
  }
  return false;
}

static bool search_folder(search *s, const char *prefix, const char *folder) {
  for (const char *const *name = s->spec->names; *name; name++) {
    char pattern[PATH_MAX];
    if (!name_allowed(s, *name)) continue;
    if (snprintf(pattern, sizeof pattern, "%s%s/%s", prefix, folder, *name) >= (int)sizeof pattern)
      continue;
    glob_t found;
    int rc = glob(pattern, 0, NULL, &found);
    if (rc == GLOB_NOMATCH) nsai_tried_add(s->tried, pattern, "no such file");
    if (rc != 0) continue;
    bool taken = false;
    for (size_t i = 0; i < found.gl_pathc && !taken; i++) taken = consider(s, found.gl_pathv[i]);
    globfree(&found);
    if (taken) return true;
  }
  return false;
}

static bool search_folders(search *s) {
  static const struct {
    const char *variable, *below;
  } roots[] = { { "VIRTUAL_ENV", "" }, { "CONDA_PREFIX", "" }, { "HOME", "/.local" } };
  for (size_t i = 0; i < sizeof roots / sizeof roots[0]; i++) {
    const char *root = secure_getenv(roots[i].variable);
    if (!root || root[0] != '/') continue;
    char prefix[PATH_MAX];
    if (snprintf(prefix, sizeof prefix, "%s%s", root, roots[i].below) >= (int)sizeof prefix)
      continue;
    for (const char *const *folder = s->spec->home_folders; *folder; folder++)
      if (search_folder(s, prefix, *folder)) return true;
  }
  static const char *const toolkits[] = { "CUDA_HOME", "CUDA_PATH" };
  for (size_t i = 0; i < sizeof toolkits / sizeof toolkits[0]; i++) {
    const char *root = secure_getenv(toolkits[i]);
    if (root && root[0] == '/' && search_folder(s, root, "/lib64")) return true;
  }
  for (const char *const *folder = s->spec->folders; *folder; folder++)
    if (search_folder(s, "", *folder)) return true;
  return false;
}

/* One sentence: what is missing, which locations were searched, what to do. */
static nsa_status fail_missing(const search *s, const char *given) {
  char tried[4096];
  size_t used = 0;
  tried[0] = '\0';
  for (int32_t i = 0; i < s->tried->count && used < sizeof tried; i++)
    used += (size_t)snprintf(tried + used, sizeof tried - used, "%s%s (%s)", i ? ", " : "",
                             s->tried->item[i].path, s->tried->item[i].outcome);
  if (!s->spec->env)
    return nsai_fail(s->spec->missing, "%s cannot be opened: tried %s; %s.", s->spec->what,
                     s->tried->count ? tried : "nothing", s->spec->remedy);
  return nsai_fail(s->spec->missing,
                   "%s cannot be opened%s%s: tried %s; %s, or name the file in `%s` or $%s.",
                   s->spec->what, given ? " from the given path " : "", given ? given : "",
                   s->tried->count ? tried : "nothing", s->spec->remedy, s->spec->config_key,
                   s->spec->env);
}

static nsa_status run(search *s) {
  memset(s->tried, 0, sizeof *s->tried);
  memset(s->out, 0, sizeof *s->out);
  const char *given = s->query->path && s->query->path[0] ? s->query->path : NULL;
  if (!given && s->spec->env) given = secure_getenv(s->spec->env);
  /* A given path is binding: using another file would hide a mistake. */
  if (given && given[0]) return consider_given(s, given) ? NSA_OK : fail_missing(s, given);
  if (share_loaded(s) || search_loader(s) || search_folders(s)) return NSA_OK;
  return fail_missing(s, NULL);
}

nsa_status nsai_library_open(const nsai_library_spec *spec, const nsai_library_query *query,
                             nsai_tried *tried, nsai_library *out) {
  search s = { spec, query, tried, out, true };
  return run(&s);
}

nsa_status nsai_library_locate(const nsai_library_spec *spec, const nsai_library_query *query,
                               nsai_tried *tried, nsai_library *out) {
  search s = { spec, query, tried, out, false };
  return run(&s);
}
