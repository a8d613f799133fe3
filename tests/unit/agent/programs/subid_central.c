/* A source of subordinate IDs beside the files, as sssd is one (subid.h of shadow, nsswitch.conf(5)): users and groups
 * of kubelet are 3276800 to 10485759, and nobody else is asked for. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS, UNKNOWN_USER };
struct subid_range { unsigned long start, count; };

int shadow_subid_list_owner_ranges(const char *owner, int type, struct subid_range **ranges, int *count)
{
    *ranges = NULL;
    *count = 0;
    if (strcmp(owner, "kubelet") != 0)
        return UNKNOWN_USER;
    *ranges = malloc(sizeof **ranges);
    **ranges = (struct subid_range) {3276800, 7208960};
    *count = 1;
    return SUCCESS;
}

int shadow_subid_has_range(const char *owner, unsigned long start, unsigned long count, int type, bool *result)
{
    *result = false;
    return SUCCESS;
}

int shadow_subid_find_subid_owners(unsigned long id, int type, unsigned int **owners, int *count)
{
    *count = 0;
    return SUCCESS;
}
