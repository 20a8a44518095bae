// A selector of versions above the search field, from versions.js beside the folders of all versions (`.ci/site`).
const root = document.documentElement.dataset.content_root;
const list = document.createElement("script");
list.src = root + "../versions.js"; // sets kcalibVersions; a site of one version has none
list.onload = () => {
  const select = document.createElement("select");
  select.ariaLabel = "Version";
  select.className = "versions";
  const here = new URL(root, location.href).pathname.split("/").at(-2);
  for (const version of kcalibVersions) {
    select.add(new Option(version, version, version === here, version === here));
  }
  select.onchange = () => (location.href = root + "../" + select.value + "/index.html");
  document.querySelector(".sidebar-brand").after(select);
};
document.head.append(list);
